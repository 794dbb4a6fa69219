"""RMS norm against its formula, alone, of heads, and with the residual addition before it."""

import pytest
import torch
from torch import Tensor

from kernels.rms_norm import add_rms_norm, rms_norm
from tests.kernels.close import Close


def oracle(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    x = x.cpu().double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * (offset + weight.cpu().double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "offset"), [((1, 64), 0.0), ((7, 576), 1.0), ((3, 4096), 0.0), ((2, 5120), 0.0)])
def test_norm_equals_its_formula(
    device: str, close: Close, dtype: torch.dtype, shape: tuple[int, ...], offset: float
) -> None:
    x = torch.randn(shape, dtype=dtype, device=device) * 3
    weight = torch.randn(shape[-1], dtype=dtype, device=device)
    close(rms_norm(x, weight, 1e-5, offset=offset), oracle(x, weight, 1e-5, offset))


@pytest.mark.parametrize("D", [64, 80, 96, 128, 256])
def test_heads_cut_out_of_a_fused_row_are_normed_in_place_of_reading(device: str, close: Close, D: int) -> None:
    row = torch.randn(5, 12 * D, device=device)
    q = row[:, D : 8 * D].view(5, 7, D)
    weight = torch.randn(D, device=device)
    close(rms_norm(q, weight, 1e-6), oracle(q, weight, 1e-6, 0.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_addition_updates_the_residual_and_norms_the_sum(device: str, close: Close, dtype: torch.dtype) -> None:
    x, residual = (torch.randn(9, 960, dtype=dtype, device=device) for _ in range(2))
    weight = torch.randn(960, dtype=dtype, device=device)
    total = (x.float() + residual.float()).to(dtype)
    y = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    close(y, oracle(total, weight, 1e-5, 0.0))


def test_tiny_values_are_governed_by_eps(device: str, close: Close) -> None:
    x, weight = torch.full((2, 128), 1e-6, device=device), torch.ones(128, device=device)
    close(rms_norm(x, weight, 1e-5), oracle(x, weight, 1e-5, 0.0))


def test_no_rows_give_no_rows(device: str) -> None:
    assert rms_norm(torch.empty(0, 64, device=device), torch.ones(64, device=device), 1e-5).shape == (0, 64)


def test_a_wrong_weight_is_named() -> None:
    with pytest.raises(ValueError, match="weight"):
        rms_norm(torch.ones(2, 8), torch.ones(9), 1e-5)
    with pytest.raises(ValueError, match="residual"):
        add_rms_norm(torch.ones(2, 8), torch.ones(3, 8), torch.ones(8), 1e-5)
