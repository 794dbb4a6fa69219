"""A weight of float8 numbers, and how kernels read it: four codes a word, scaled where a sum is whole."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.language import INTERPRETED, cdiv, jit, tl

NONE, CHANNELS, BLOCKS = (tl.constexpr(n) for n in range(3))
SPAN = tl.constexpr(128)  # outputs, and inputs, of a block


@dataclass(frozen=True)
class Float8Weight:
    """number = scale * code, [F, E]: a scale for each output, or for each block of 128 outputs and 128 inputs.

    `codes`: float8_e4m3fn [F, E], contiguous. `scales`: float32 [F], or [F / 128, E / 128], rounded up, contiguous.
    """

    codes: Tensor
    scales: Tensor
    one: Tensor = field(init=False)  # the scale of whoever scales by rows and outputs afterwards

    def __post_init__(self) -> None:
        F, E = self.codes.shape
        if self.codes.dtype != torch.float8_e4m3fn or not self.codes.is_contiguous():
            raise ValueError(f"codes are {self.codes.dtype}; they must be contiguous float8_e4m3fn")
        if self.scales.shape not in ((F,), (cdiv(F, SPAN.value), cdiv(E, SPAN.value))):
            raise ValueError(f"scales have shape {tuple(self.scales.shape)}; codes are {(F, E)}")
        if self.scales.dtype != torch.float32 or not self.scales.is_contiguous():
            raise ValueError(f"scales are {self.scales.dtype}; they must be contiguous float32")
        object.__setattr__(self, "one", torch.ones((), device=self.codes.device))

    @property
    def shape(self) -> torch.Size:
        """[F, E]."""
        return self.codes.shape

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.codes.device

    @property
    def by_blocks(self) -> bool:
        """Whether blocks, not outputs, have a scale each."""
        return self.scales.dim() == 2

    @property
    def nbytes(self) -> int:
        """What it takes on the device."""
        return self.codes.nbytes + self.scales.nbytes

    def reference(self, dtype: torch.dtype) -> Tensor:
        """Return the numbers [F, E] in plain torch, rounded once."""
        scales = self.scales[:, None]
        if self.by_blocks:
            F, E = self.shape
            scales = self.scales.repeat_interleave(SPAN.value, 0)[:F].repeat_interleave(SPAN.value, 1)[:, :E]
        return (self.codes.float() * scales).to(dtype)


def parts_of(weight: Tensor | Float8Weight) -> tuple[Tensor, Tensor | None, int]:
    """Return a weight as it lies in memory, its scales if it has some, and NONE, CHANNELS or BLOCKS."""
    if not isinstance(weight, Float8Weight):
        return weight, None, int(NONE.value)
    return weight.codes, weight.scales, int(BLOCKS.value if weight.by_blocks else CHANNELS.value)


@jit
def as_numbers(codes, DTYPE: tl.constexpr):
    """Codes in another type. A card has an instruction from float8 to float16, for two codes, and fast ones from there
    to float32 and on to bfloat16; straight from float16 to bfloat16 it is eight times slower than memory delivers."""
    return codes.to(tl.float16).to(tl.float32).to(DTYPE)


@jit
def four_numbers(words):
    """The float32 numbers of words of four codes: ten instructions with their products, where bytes that a loop hands
    on one by one take twenty-four."""
    if INTERPRETED:
        a = (words & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
        b = (words >> 8 & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
        c = (words >> 16 & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
        d = (words >> 24 & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
        return a, b, c, d
    return tl.inline_asm_elementwise(
        """{
        .reg .b16 low, high;
        .reg .b32 first, second;
        .reg .f16 a, b, c, d;
        mov.b32 {low, high}, $4;
        cvt.rn.f16x2.e4m3x2 first, low;
        cvt.rn.f16x2.e4m3x2 second, high;
        mov.b32 {a, b}, first;
        mov.b32 {c, d}, second;
        cvt.f32.f16 $0, a;
        cvt.f32.f16 $1, b;
        cvt.f32.f16 $2, c;
        cvt.f32.f16 $3, d;
        }""",
        "=f,=f,=f,=f,r", [words], dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
    )  # fmt: skip
