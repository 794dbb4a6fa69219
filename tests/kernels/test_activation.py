"""Gates of the feed-forward block against their formulas, large numbers included."""

import math

import pytest
import torch
from torch import Tensor

from kernels.activation import gelu_and_mul, silu_and_mul
from tests.kernels.close import Close


def halves(x: Tensor) -> tuple[Tensor, ...]:
    return x.cpu().double().chunk(2, dim=-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 2), (5, 2 * 1536), (3, 2 * 1031)])
def test_silu_gate_equals_its_formula(device: str, close: Close, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=dtype, device=device) * 4
    gate, up = halves(x)
    close(silu_and_mul(x), gate / (1 + torch.exp(-gate)) * up)


@pytest.mark.parametrize("tanh", [True, False])
def test_gelu_gate_equals_its_formula(device: str, close: Close, tanh: bool) -> None:
    x = torch.randn(6, 2 * 777, device=device) * 3
    gate, up = halves(x)
    if tanh:
        act = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    else:
        act = 0.5 * gate * (1 + torch.erf(gate / math.sqrt(2)))
    close(gelu_and_mul(x, tanh=tanh), act * up)


def test_large_gates_neither_overflow_nor_vanish(device: str, close: Close) -> None:
    x = torch.tensor([[-200.0, 200.0, -1e30, 1e30, 1.0, 1.0, 1.0, 1.0]], device=device)
    close(silu_and_mul(x), torch.tensor([[0.0, 200.0, 0.0, 1e30]]))


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="x has shape"):
        silu_and_mul(torch.ones(2, 5))
