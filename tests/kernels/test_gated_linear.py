"""The gated product against its formula, in one kernel on a Hopper card."""

import math

import pytest
import torch
from torch import Tensor

from kernels import dispatch, gated_linear
from kernels.activation import CLAMPED, GELU, GELU_TANH, SILU
from tests.kernels.close import Close


def truth(x: Tensor, weight: Tensor, act: int) -> Tensor:
    x, weight = x.cpu().double(), weight.cpu().double()
    gate, up = (x @ weight.t()).chunk(2, dim=-1)
    if act == SILU:
        return gate / (1 + torch.exp(-gate)) * up
    if act == GELU:
        return 0.5 * gate * (1 + torch.erf(gate / math.sqrt(2))) * up
    if act == CLAMPED:
        gate = torch.where(gate > 7, 7, gate)
        return gate / (1 + torch.exp(-1.702 * gate)) * (torch.where(up.abs() > 7, 7 * up.sign(), up) + 1)
    return 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up


@pytest.mark.parametrize("act", [SILU, GELU, GELU_TANH, CLAMPED])
def test_a_gated_product_equals_its_formula(device: str, close: Close, act: int) -> None:
    x, weight = torch.randn(7, 40, device=device), torch.randn(2 * 24, 40, device=device) * 0.3
    close(gated_linear.gated_linear(x, weight, act), truth(x, weight, act))


def test_rows_without_inputs_or_outputs_do_not_matter(device: str) -> None:
    assert gated_linear.gated_linear(torch.ones(0, 8, device=device), torch.ones(6, 8, device=device), SILU).shape == (
        0,
        3,
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("act", [SILU, GELU, GELU_TANH, CLAMPED])
@pytest.mark.parametrize(("T", "E", "F"), [(1, 64, 128), (300, 256, 256), (1111, 512, 384), (2176, 128, 1152)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_kernel_on_a_hopper_card(
    monkeypatch: pytest.MonkeyPatch, close: Close, T: int, E: int, F: int, dtype: torch.dtype, act: int
) -> None:
    """Rows and columns that do not fill their tiles, more tiles than programs, rows cut out of wider ones."""
    monkeypatch.setattr(gated_linear, "_ROWS", (range(1, 1 << 30),))
    wide = torch.randn(T, E + 64, device="cuda").to(dtype)
    x, weight = wide[:, :E], (torch.randn(2 * F, E, device="cuda") * E**-0.5).to(dtype)
    if not gated_linear.hopper_fits(x, weight):
        pytest.skip("no Hopper card")
    with dispatch.forced("triton"):
        out = gated_linear.gated_linear(x, weight, act)
        close(out, truth(x, weight, act))
        assert torch.equal(out, gated_linear.gated_linear(x, weight, act))
