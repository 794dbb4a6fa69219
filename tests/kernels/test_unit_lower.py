"""Inverses of unit lower triangular tiles, by a kernel that does nothing else."""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def"
import pytest
import torch

from kernels.language import jit, tl
from kernels.unit_lower import unit_lower_inverse


@jit
def _inverse_kernel(lower_ptr, out_ptr):
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(out_ptr + at, unit_lower_inverse(tl.load(lower_ptr + at), 64))


def _inverted(lower: torch.Tensor, where: str) -> torch.Tensor:
    out = torch.full((64, 64), float("nan"), device=where)
    _inverse_kernel[(1,)](lower.float().to(where), out)
    return out.cpu().double()


@pytest.mark.parametrize(
    "device", [pytest.param(("triton", "cpu")), pytest.param(("triton", "cuda"), marks=pytest.mark.gpu)], indirect=True
)
def test_the_inverse_is_exact_where_it_grows_and_where_powers_of_the_tile_would(device: str) -> None:
    one = torch.eye(64, dtype=torch.float64)
    grows = (torch.randn(64, 64, dtype=torch.float64) * 0.3).tril(-1)
    found, wanted = _inverted(grows, device), torch.linalg.inv(one + grows.float().double())
    assert float(wanted.abs().max()) > 3
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5
    equal = torch.ones(64, 64, dtype=torch.float64).tril(-1)  # 64 equal keys, each of which replaces the one before
    assert torch.equal(_inverted(equal, device), one - one.roll(1, 0).tril())
