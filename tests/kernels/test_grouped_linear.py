from __future__ import annotations

import pytest
import torch

from kernels import dispatch
from kernels.grouped_linear import grouped_linear
from kernels.grouped_weight import GroupedWeight

KINDS = ("nibbles", "uint8", "int8", "float8")


def made(kind: str, F: int, E: int, G: int, *, zeros: bool, scales: torch.dtype, device: str) -> GroupedWeight:
    """Random codes of every bit pattern (float8: but for its two nan)."""
    bits = 4 if kind == "nibbles" else 8
    codes = torch.randint(0, 256, (F, E * bits // 8), dtype=torch.uint8, device=device)
    if kind == "int8":
        codes = codes.view(torch.int8)
    if kind == "float8":
        codes = torch.where(codes & 127 == 127, 0, codes).view(torch.float8_e4m3fn)
    table = torch.randint(0, 17, (F, G), dtype=torch.int16, device=device) if zeros else None
    middle = {"nibbles": 8, "uint8": 128}.get(kind, 0)
    return GroupedWeight(codes, (torch.rand(F, G, device=device) + 0.1).to(scales), table, middle, 8 // bits)


def numbers(weight: GroupedWeight) -> torch.Tensor:
    """The meaning in float64, column by column."""
    codes, (F, E) = weight.codes.cpu(), weight.shape
    out = torch.empty(F, E, dtype=torch.float64)
    for column in range(E):
        code = codes[:, column // weight.each]
        if weight.each == 2:
            code = code >> 4 if column % 2 else code & 15
        group = column * weight.scales.shape[1] // E
        zero = weight.middle if weight.zeros is None else weight.zeros[:, group].cpu().double()
        out[:, column] = (code.float().double() - zero) * weight.scales[:, group].cpu().double()
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("T", "E", "F", "G", "zeros", "bias"),
    [
        (1, 256, 33, 2, True, True),
        (1, 576, 65, 9, False, False),
        (1, 2304, 10, 1, True, False),
        (2, 128, 17, 4, True, True),
        (17, 576, 40, 9, False, True),
        (64, 192, 16, 3, True, False),
        (5, 96, 20, 8, True, False),  # groups of 12, which no tensor core takes
        (65, 128, 24, 1, False, True),
        (0, 64, 8, 2, True, False),
    ],
)
def test_product_equals_its_formula(device, close, kind, T, E, F, G, zeros, bias):
    weight = made(kind, F, E, G, zeros=zeros, scales=torch.float16, device=device)
    x = torch.randn(T, E, device=device)
    b = torch.randn(F, device=device) if bias else None
    truth = x.cpu().double() @ numbers(weight).T + (b.cpu().double() if b is not None else 0)
    close(grouped_linear(x, weight, b), truth)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("T", [1, 3, 70])
def test_halves_are_multiplied_and_no_weight_is_rounded_in_few_rows(device, close, kind, T):
    if T > 1 and device == "cpu" and dispatch.form(torch.empty(0)) != "triton":
        pytest.skip("torch rounds weights to x's dtype")
    weight = made(kind, 48, 256, 2, zeros=True, scales=torch.float32, device=device)
    x = torch.randn(T, 256, device=device).half()
    close(grouped_linear(x, weight), x.cpu().double() @ numbers(weight).T)


def test_rows_cut_out_of_wider_ones_are_read_in_place(device, close):
    weight = made("nibbles", 24, 64, 2, zeros=True, scales=torch.bfloat16, device=device)
    for T in (1, 4):
        wide = torch.randn(T, 200, device=device)
        close(grouped_linear(wide[:, 10:74], weight), wide[:, 10:74].cpu().double() @ numbers(weight).T)


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_fixed_order_a_rows_bits_do_not_depend_on_the_others(device, kind):
    weight = made(kind, 24, 64, 2, zeros=False, scales=torch.float16, device=device)
    x = torch.randn(9, 64, device=device)
    if dispatch.form(x) != "triton":
        pytest.skip("orders are those of kernels")
    with dispatch.fixed_order():
        whole = grouped_linear(x, weight)
        alone = [grouped_linear(x[n : n + 1], weight) for n in range(9)]
    assert torch.equal(whole, torch.cat(alone))


def test_wrong_arguments_are_named():
    weight = made("nibbles", 4, 32, 1, zeros=True, scales=torch.float16, device="cpu")
    with pytest.raises(ValueError, match="x has shape"):
        grouped_linear(torch.zeros(1, 31), weight)
    with pytest.raises(ValueError, match="bias"):
        grouped_linear(torch.zeros(1, 32), weight, torch.zeros(5))
    with pytest.raises(ValueError, match="scales"):
        GroupedWeight(torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 3), None, 8, 2)
    with pytest.raises(ValueError, match="codes"):
        GroupedWeight(torch.zeros(4, 16), torch.zeros(4, 1), None)
    with pytest.raises(ValueError, match="zeros"):
        GroupedWeight(torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 1), torch.zeros(4, 2))
