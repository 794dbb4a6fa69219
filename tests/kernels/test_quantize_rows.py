"""Rows rounded to float8 with scales of their own, alone, behind a norm and behind a gate."""

import pytest
import torch
from torch import Tensor

from kernels import activation, dispatch
from kernels.few_rows import RmsNormWeights
from kernels.quantize_rows import QuantizedRows, gated_rows, normed_rows, quantize_rows
from tests.kernels.close import Close
from tests.kernels.test_few_rows_float8 import FORMS, dtype, normed

SIZES = pytest.mark.parametrize(("T", "E"), [(1, 16), (3, 208), (70, 640)])


def holds(rows: QuantizedRows, truth: Tensor, *, by_blocks: bool, slack: float = 0.0) -> None:
    """Every number lies within half a step of float8 of the truth, and the largest of a row is the largest code."""
    T, E = truth.shape
    width = 128 if by_blocks else E
    groups = torch.nn.functional.pad(truth, (0, -E % width)).view(T, -1, width)
    scales = rows.scales.cpu().double()
    assert torch.allclose(scales, groups.abs().amax(2) / 448, rtol=1e-5 + slack, atol=1e-9)
    interpreted = dispatch.form(rows.codes) == "triton" and not rows.codes.is_cuda
    least = 2.0**-9 if interpreted else 2.0**-10  # the interpreter cuts subnormal codes off
    step = torch.maximum(truth.abs() / 16, least * scales.repeat_interleave(width, 1)[:, :E])
    errors = (rows.reference().cpu().double() - truth).abs()
    assert bool((errors <= step * (1.001 + 16 * slack)).all())
    assert bool((rows.codes.float().abs().amax(1) == 448).all())


@FORMS
@SIZES
def test_rows_are_rounded_to_scales_of_their_own(device: str, T: int, E: int, by_blocks: bool) -> None:
    x = (
        torch.randn(T, 2 * E, device=device, dtype=dtype(device))[:, :E]
        * torch.logspace(-3, 3, T, device=device)[:, None]
    )
    x = x.to(dtype(device))
    holds(quantize_rows(x, by_blocks=by_blocks), x.cpu().double(), by_blocks=by_blocks)


@FORMS
@SIZES
def test_rows_are_added_and_normed_before(device: str, close: Close, T: int, E: int, by_blocks: bool) -> None:
    x, residual = torch.randn(2, T, E, device=device, dtype=dtype(device))
    norm = RmsNormWeights(torch.rand(E, device=device, dtype=dtype(device)) + 0.5, 1e-5, 0.5)
    holds(normed_rows(x, norm, by_blocks=by_blocks), normed(x, norm), by_blocks=by_blocks, slack=1e-5)
    before = residual.clone()
    rows = normed_rows(x, norm, residual, by_blocks=by_blocks)
    close(residual, x.cpu().double() + before.cpu().double())
    holds(rows, normed(residual, norm), by_blocks=by_blocks, slack=1e-5)


@FORMS
@SIZES
@pytest.mark.parametrize("act", [0, 1, 2, 3])
def test_rows_are_gated_before(device: str, T: int, E: int, act: int, by_blocks: bool) -> None:
    x = torch.randn(T, 2 * E, device=device, dtype=dtype(device))
    truth = activation.reference(x.cpu().double(), act).double()
    holds(gated_rows(x, act, by_blocks=by_blocks), truth, by_blocks=by_blocks, slack=1e-4)


def test_rows_of_zeros_and_no_rows(device: str) -> None:
    rows = quantize_rows(torch.zeros(2, 32, device=device, dtype=dtype(device)))
    assert not rows.reference().any()
    assert quantize_rows(torch.zeros(0, 32, device=device, dtype=dtype(device))).codes.shape == (0, 32)


def test_wrong_arguments_are_named() -> None:
    x = torch.zeros(2, 6)
    with pytest.raises(ValueError, match="x has shape"):
        quantize_rows(x.t())
    with pytest.raises(ValueError, match="2F"):
        gated_rows(torch.zeros(2, 5), 0)
    with pytest.raises(ValueError, match="residual"):
        normed_rows(x, RmsNormWeights(torch.ones(6), 1e-5), torch.zeros(2, 5))
