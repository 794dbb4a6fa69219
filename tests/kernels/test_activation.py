"""Gates of the feed-forward block against their formulas, large numbers included."""

import math

import pytest
import torch
from torch import Tensor

from kernels.activation import CLAMPED, act_and_mul, gelu_and_mul, silu_and_mul
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_clamped_gate_equals_its_formula_on_both_sides_of_its_limits(
    device: str, close: Close, dtype: torch.dtype
) -> None:
    x = torch.randn(6, 2 * 777, device=device, dtype=dtype) * 8
    x[0, 1] = x[1, 778] = 1e30
    x[2, 3] = x[3, 780] = -1e30
    gate, up = halves(x)
    assert all(bool((half.abs() > 7).any()) for half in (gate, up))
    gate = torch.where(gate > 7, 7, gate)
    up = 7 * torch.where(up.abs() > 7, up.sign(), up / 7)
    close(act_and_mul(x, CLAMPED), (up + 1) * gate / (1 + torch.exp(-1.702 * gate)))


def test_what_is_no_number_is_not_clamped_to_one(device: str) -> None:
    x = torch.ones(2, 40, device=device)
    x[0, 3] = x[1, 25] = math.nan
    out = act_and_mul(x, CLAMPED)
    assert out.isnan().nonzero().tolist() == [[0, 3], [1, 5]]


def test_large_gates_neither_overflow_nor_vanish(device: str, close: Close) -> None:
    x = torch.tensor([[-200.0, 200.0, -1e30, 1e30, 1.0, 1.0, 1.0, 1.0]], device=device)
    close(silu_and_mul(x), torch.tensor([[0.0, 200.0, 0.0, 1e30]]))


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="x has shape"):
        silu_and_mul(torch.ones(2, 5))
