"""Products of float8 weights and rounded activations against the product of the rounded numbers."""

import pytest
import torch

from kernels.float8_weight import Float8Weight
from kernels.quantize_rows import quantize_rows
from kernels.scaled_linear import scaled_linear, suits
from tests.kernels.close import Close
from tests.kernels.test_few_rows_float8 import FORMS, dtype, weight_of


@FORMS
@pytest.mark.parametrize(("T", "F"), [(1, 384), (65, 384), (130, 384), (130, 8960)])  # the last fills a card
@pytest.mark.parametrize("bias", [False, True])
def test_equals_the_product_of_the_rounded_numbers(
    device: str, close: Close, T: int, F: int, bias: bool, by_blocks: bool
) -> None:
    x = torch.randn(T, 512, device=device, dtype=dtype(device))
    weight, numbers = weight_of(F, 512, device, by_blocks=by_blocks)
    added = torch.randn(F, device=device, dtype=torch.bfloat16) if bias else None
    rows = quantize_rows(x, by_blocks=by_blocks)
    truth = rows.reference().cpu().double() @ numbers.T
    if added is not None:
        truth += added.cpu().double()
    close(scaled_linear(rows, weight, added), truth)
    close(scaled_linear(x, weight, added), truth)


@FORMS
def test_activations_lose_what_float8_cannot_hold(device: str, by_blocks: bool) -> None:
    """3 bits of mantissa: 2.5 % of each number, and of a sum of many."""
    x = torch.randn(80, 1024, device=device, dtype=dtype(device))
    weight, numbers = weight_of(256, 1024, device, by_blocks=by_blocks)
    truth = x.cpu().double() @ numbers.T
    error = (scaled_linear(x, weight).cpu().double() - truth).norm() / truth.norm()
    assert 0.01 < error < 0.04


def test_which_weights_suit_a_card() -> None:
    codes = torch.zeros(256, 512).to(torch.float8_e4m3fn)
    rows, blocks = Float8Weight(codes, torch.ones(256)), Float8Weight(codes, torch.ones(2, 4))
    assert suits(rows, (9, 0)) and suits(rows, (10, 0)) and not suits(rows, (8, 0))
    assert suits(blocks, (9, 0)) and not suits(blocks, (10, 0))
    assert not suits(Float8Weight(codes[:, :384].contiguous(), torch.ones(2, 3)), (9, 0))


def test_wrong_arguments_are_named() -> None:
    weight = Float8Weight(torch.zeros(32, 16).to(torch.float8_e4m3fn), torch.ones(32))
    with pytest.raises(ValueError, match="x has shape"):
        scaled_linear(torch.zeros(2, 8), weight)
    with pytest.raises(ValueError, match="bias"):
        scaled_linear(torch.zeros(2, 16), weight, torch.zeros(4))
