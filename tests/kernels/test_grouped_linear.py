"""Products on weights that stay at 4 or 8 bits, against the formula, in each layout of their words."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from kernels import dispatch
from kernels import grouped_linear as grouped_op
from kernels.grouped_linear import grouped_linear
from kernels.grouped_weight import GroupedWeight
from tests.kernels.close import Close

KINDS = ("nibbles", "uint8", "int8", "float8")


class Made(NamedTuple):
    """What a weight was made of, and the weight."""

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    middle: int
    each: int
    weight: GroupedWeight

    def numbers(self) -> torch.Tensor:
        """The meaning in float64, column by column."""
        codes, E, G = self.codes.cpu(), self.codes.shape[1] * self.each, self.scales.shape[1]
        out = torch.empty(codes.shape[0], E, dtype=torch.float64)
        for column in range(E):
            code, group = codes[:, column // self.each], column * G // E
            if self.each == 2:
                code = code >> 4 if column % 2 else code & 15
            zero = self.middle if self.zeros is None else self.zeros[:, group].cpu().double()
            out[:, column] = (code.float().double() - zero) * self.scales[:, group].cpu().double()
        return out


def weight(kind: str, F: int, E: int, G: int, *, zeros: bool, scales: torch.dtype, device: str) -> Made:
    """Random codes of every bit pattern (float8: but for its two nan)."""
    each = 2 if kind == "nibbles" else 1
    codes = torch.randint(0, 256, (F, E // each), dtype=torch.uint8, device=device)
    if kind == "int8":
        codes = codes.view(torch.int8)
    if kind == "float8":
        codes = torch.where(codes & 127 == 127, 0, codes).view(torch.float8_e4m3fn)
    table = torch.randint(0, 17, (F, G), dtype=torch.int16, device=device) if zeros and kind != "float8" else None
    middle = {"nibbles": 8, "uint8": 128}.get(kind, 0)
    units = (torch.rand(F, G, device=device) + 0.1).to(scales)
    return Made(codes, units, table, middle, each, GroupedWeight.of(codes, units, table, middle, each))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("x_dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("T", "E", "F", "G", "zeros", "bias"),
    [
        (1, 512, 33, 4, True, True),  # groups that a block holds four of
        (1, 576, 65, 9, False, False),  # a last block that is filled up
        (1, 2304, 10, 1, True, False),
        (2, 128, 17, 4, True, True),
        (3, 3584, 64, 28, True, False),  # a sum in several parts
        (17, 576, 40, 9, False, True),
        (64, 192, 16, 3, True, False),
        (33, 96, 20, 2, True, False),  # groups of 48
        (5, 96, 20, 8, True, False),  # groups of 12, which no tensor core takes
        (65, 128, 24, 1, False, True),
        (0, 64, 8, 2, True, False),
    ],
)
def test_product_equals_its_formula(
    device: str,
    close: Close,
    kind: str,
    x_dtype: torch.dtype,
    T: int,
    E: int,
    F: int,
    G: int,
    zeros: bool,
    bias: bool,
) -> None:
    made = weight(kind, F, E, G, zeros=zeros, scales=torch.float16, device=device)
    x = torch.randn(T, E, device=device).to(x_dtype)
    b = torch.randn(F, device=device).to(x_dtype) if bias else None
    truth = x.cpu().double() @ made.numbers().T + (b.cpu().double() if b is not None else 0)
    few = 256 if made.weight.lie_in_fragments else 64
    rounded = x_dtype == torch.float16 and (dispatch.form(x) != "triton" or few < T)  # the weights, to x's dtype
    close(grouped_linear(x, made.weight, b), truth, loose=4.0 if rounded else 1.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scales", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("T", [1, 3, 70])
def test_halves_are_multiplied_and_no_weight_is_rounded_in_few_rows(
    device: str, close: Close, kind: str, scales: torch.dtype, T: int
) -> None:
    if T > 1 and device == "cpu" and dispatch.form(torch.empty(0)) != "triton":
        pytest.skip("torch rounds weights to x's dtype")
    made = weight(kind, 48, 256, 2, zeros=True, scales=scales, device=device)
    x = torch.randn(T, 256, device=device).half()
    close(grouped_linear(x, made.weight), x.cpu().double() @ made.numbers().T)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_are_those_of_the_formula_rounded_once(device: str, kind: str, dtype: torch.dtype) -> None:
    made = weight(kind, 37, 96, 8, zeros=True, scales=torch.float16, device=device)
    found = made.weight.launch(dtype) if dispatch.form(made.scales) == "triton" else made.weight.reference(dtype)
    cut = dtype == torch.bfloat16 and device == "cpu" and dispatch.form(made.scales) == "triton"
    limit = made.numbers().abs() * (torch.finfo(dtype).eps * (1 if cut else 0.5))  # the interpreter cuts bf16 off
    assert ((found.cpu().double() - made.numbers()).abs() <= limit).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("F", "E", "G"), [(37, 96, 3), (64, 256, 2), (100, 640, 10)])
def test_numbers_in_fragments_are_those_in_rows(device: str, dtype: torch.dtype, F: int, E: int, G: int) -> None:
    codes = torch.randint(0, 256, (4 * F, E // 2), dtype=torch.uint8, device=device)
    scales, zeros = torch.rand(4 * F, G, device=device).half(), torch.randint(0, 17, (4 * F, G), device=device)
    rows, lying = (GroupedWeight.of(codes, scales, zeros, 0, 2, hopper) for hopper in (False, True))
    assert lying.lie_in_fragments
    if dispatch.form(scales) == "triton":
        assert torch.equal(lying.launch(dtype), rows.launch(dtype))
    assert torch.equal(lying.reference(dtype), rows.reference(dtype))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("T", [1, 3, 16, 17, 64, 65, 128, 200, 256])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("F", "E", "G", "zeros", "bias"),
    [
        (6144, 4096, 32, True, False),
        (100, 512, 4, False, True),
        (132, 2304, 1, True, False),  # whole rows
        (64, 96, 3, True, True),  # groups of 32, a last block that is filled up
        (448, 640, 10, True, False),  # groups of 64, an odd number of blocks
        (192, 288, 3, True, False),  # groups of 96
        (4096, 3584, 28, True, False),
    ],
)
def test_products_from_fragments_on_a_hopper_card(
    close: Close, T: int, dtype: torch.dtype, F: int, E: int, G: int, zeros: bool, bias: bool
) -> None:
    made = weight("nibbles", F, E, G, zeros=zeros, scales=dtype, device="cuda")
    if not made.weight.lie_in_fragments:
        pytest.skip("this card has another kernel")
    x = torch.randn(T, E, device="cuda").to(dtype)
    b = torch.randn(F, device="cuda").to(dtype) if bias else None
    truth = x.double() @ made.weight.reference(torch.float64).T + (b.double() if b is not None else 0)
    for _ in range(2):
        close(grouped_linear(x, made.weight, b), truth)
    assert not made.weight.arrived.any()


@pytest.mark.parametrize("split", [1, 2, 3, 8])
def test_a_sum_in_parts_is_the_whole_sum_and_leaves_its_counters_as_they_were(
    device: str, close: Close, split: int
) -> None:
    made = weight("nibbles", 70, 1664, 13, zeros=True, scales=torch.float16, device=device)  # 70: not in fragments
    x = torch.randn(4, 1664, device=device).half()
    if dispatch.form(x) != "triton":
        pytest.skip("parts are those of the kernel")
    for _ in range(2):
        found = grouped_op._launch(x, made.weight, None, grouped_op.Tile(64, 4, 2, split, subtract=False))
        close(found, x.cpu().double() @ made.numbers().T)
    assert not made.weight.arrived.any()


def test_rows_cut_out_of_wider_ones_are_read_in_place(device: str, close: Close) -> None:
    made = weight("nibbles", 24, 64, 2, zeros=True, scales=torch.bfloat16, device=device)
    for T in (1, 4):
        wide = torch.randn(T, 200, device=device).half()
        close(grouped_linear(wide[:, 10:74], made.weight), wide[:, 10:74].cpu().double() @ made.numbers().T, loose=2)


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_fixed_order_a_rows_bits_do_not_depend_on_the_others(device: str, kind: str) -> None:
    made = weight(kind, 24, 64, 2, zeros=False, scales=torch.float16, device=device)
    x = torch.randn(70, 64, device=device).half()
    if dispatch.form(x) != "triton":
        pytest.skip("orders are those of kernels")
    with dispatch.fixed_order():
        whole = grouped_linear(x, made.weight)
        alone = [grouped_linear(x[n : n + 1], made.weight) for n in range(9)]
    assert torch.equal(whole[:9], torch.cat(alone))


def test_wrong_arguments_are_named() -> None:
    made = weight("nibbles", 4, 32, 1, zeros=True, scales=torch.float16, device="cpu").weight
    with pytest.raises(ValueError, match="x has shape"):
        grouped_linear(torch.zeros(1, 31), made)
    with pytest.raises(ValueError, match="bias"):
        grouped_linear(torch.zeros(1, 32), made, torch.zeros(5))
    with pytest.raises(ValueError, match="scales"):
        GroupedWeight.of(torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 3), None, 8, 2)
    with pytest.raises(ValueError, match="codes"):
        GroupedWeight.of(torch.zeros(4, 16), torch.zeros(4, 1), None)
    with pytest.raises(ValueError, match="zeros"):
        GroupedWeight.of(torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 1), torch.zeros(4, 2))
