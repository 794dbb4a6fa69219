"""Float8 weights: few rows are multiplied unrounded, many are rounded on a card, none in a fixed order."""

import pytest
import torch
from torch import nn

from kernels import dispatch
from kernels.float8_linear import UNROUNDED_ROWS, float8_linear, rounds
from kernels.quantize_rows import quantize_rows
from tests.kernels.close import Close
from tests.kernels.test_few_rows_float8 import FORMS, dtype, weight_of


@FORMS
@pytest.mark.parametrize("T", [0, 1, 5])
@pytest.mark.parametrize("bias", [False, True])
def test_activations_of_few_rows_are_not_rounded(
    device: str, close: Close, T: int, bias: bool, by_blocks: bool
) -> None:
    x = torch.randn(T, 208, device=device, dtype=dtype(device))
    weight, numbers = weight_of(256, 208, device, by_blocks=by_blocks)
    added = torch.randn(256, device=device, dtype=dtype(device)) if bias else None
    truth = x.cpu().double() @ numbers.T + (0 if added is None else added.cpu().double())
    close(float8_linear(x, weight, added), truth, loose=2)


@FORMS
def test_those_of_many_rows_are_on_a_card(device: str, close: Close, by_blocks: bool) -> None:
    x = torch.randn(UNROUNDED_ROWS + 1, 512, device=device, dtype=dtype(device))
    weight, numbers = weight_of(256, 512, device, by_blocks=by_blocks)
    assert rounds(x) is (dispatch.form(x) == "triton")
    rows = quantize_rows(x, by_blocks=by_blocks)
    truth = (rows.reference() if rounds(x) else x).cpu().double() @ numbers.T
    close(float8_linear(x, weight), truth)
    with dispatch.fixed_order():
        assert not rounds(x)


@FORMS
def test_in_a_fixed_order_a_row_has_its_bits_whatever_is_beside_it(device: str, close: Close, by_blocks: bool) -> None:
    T = 700 if device == "cuda" else 70
    x = torch.randn(T, 208, device=device, dtype=dtype(device))
    weight, numbers = weight_of(256, 208, device, by_blocks=by_blocks)
    with dispatch.fixed_order():
        out = float8_linear(x, weight)
        alone = float8_linear(x[3:4], weight)
        few = float8_linear(x[:20], weight)
    close(out, x.cpu().double() @ numbers.T, loose=2)
    if dispatch.form(x) == "triton":
        assert torch.equal(out[3:4], alone)
        assert torch.equal(out[:20], few)


def test_a_wrong_x_is_named() -> None:
    weight, _ = weight_of(16, 32, "cpu", by_blocks=False)
    with pytest.raises(ValueError, match="x has shape"):
        float8_linear(nn.Parameter(torch.zeros(2, 16)), weight)
