"""Keys and values of a cache in 8 bits: e4m3 codes, with one scale for a layer's keys and one for its values.

number = scale * code. Kernels make codes where they store and widen them where they load. The scale of keys is part of
the scale of scores, and the one of values multiplies what attention gives, so no kernel scales what it reads.
"""

# mypy: disable-error-code="no-untyped-def"
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.language import INTERPRETED, jit, tl

DTYPE = torch.float8_e4m3fn
LARGEST = 448.0


class KvScales(NamedTuple):
    """What the codes of keys and of values are multiplied with; caches of other dtypes take no notice."""

    k: float = 1.0
    v: float = 1.0

    def of(self, cache: Tensor) -> "KvScales":
        """Return the scales of a cache: these, or ones where it is not of 8 bits."""
        return self if cache.dtype == DTYPE else ONES

    def inverse(self, cache: Tensor) -> tuple[float, float]:
        """Return what keys and values are multiplied with before they are stored."""
        k, v = self.of(cache)
        return 1 / k, 1 / v


ONES = KvScales()


def rounded(x: Tensor, dtype: torch.dtype, over: float) -> Tensor:
    """Return `x` as a cache of `dtype` holds it; codes are those of x * over, and end at +-448."""
    return (x.float() * over).clamp(-LARGEST, LARGEST).to(DTYPE) if dtype == DTYPE else x.to(dtype)


def bits(x: Tensor) -> Tensor:
    """Return codes as bytes, which torch can index; anything else as it is."""
    return x.view(torch.uint8) if x.dtype == DTYPE else x


@jit
def stored(x, over, cache_ptr):
    """What goes to a cache for `x`."""
    if cache_ptr.dtype.element_ty == tl.float8e4nv:
        x = x.to(tl.float32) * over
        if INTERPRETED:
            x = _code(x).to(tl.float8e4nv, bitcast=True)
    return x.to(cache_ptr.dtype.element_ty)  # to codes: the card's instruction ends at +-448 and keeps NaN


@jit
def beside_codes(q, cache_ptr):
    """Queries as they are multiplied with what a cache holds: bfloat16 beside codes becomes float16.

    A card has one instruction that makes float16 numbers of two codes, and needs four for bfloat16: too many to keep up
    with memory. Nothing is lost, float16 has more digits, and queries end at 65,504.
    """
    numbers = q
    if cache_ptr.dtype.element_ty == tl.float8e4nv and q.dtype == tl.bfloat16:
        numbers = tl.clamp(q.to(tl.float32), -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float16)
    return numbers


@jit
def widened(codes, TO: tl.constexpr):
    """Codes as numbers of the type `TO`; what is no code stays as it is."""
    numbers = codes
    if codes.dtype == tl.float8e4nv:
        numbers = codes.to(tl.float16)
        if numbers.dtype != TO:
            numbers = numbers.to(tl.float32).to(TO)
    return numbers


@jit
def two_numbers(words, TO: tl.constexpr):
    """The numbers of words of two codes, the lower and the upper, of the type `TO`.

    Tensor cores take what shared memory delivers by words of 16 bits; bytes, of values above all, come one by one, each
    into a register of its own.
    """
    if INTERPRETED:
        low = (words & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
        high = (words >> 8 & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        low, high = tl.inline_asm_elementwise(
            """{
            .reg .b32 lows, highs;
            .reg .b16 two_lows, two_highs, nothing;
            prmt.b32 lows, $2, 0, 0x4420;
            prmt.b32 highs, $2, 0, 0x4431;
            mov.b32 {two_lows, nothing}, lows;
            mov.b32 {two_highs, nothing}, highs;
            cvt.rn.f16x2.e4m3x2 $0, two_lows;
            cvt.rn.f16x2.e4m3x2 $1, two_highs;
            }""",
            "=r,=r,r", [words], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    return low.to(TO), high.to(TO)


@jit
def _code(x):
    """The byte of float32 `x`, to the nearest, ties to even: the interpreter's own conversion cuts off."""
    size = tl.minimum(tl.abs(x), 448.0)
    word = size.to(tl.int32, bitcast=True)
    word = word + 0x7FFFF + ((word >> 20) & 1)
    normal = (word >> 20) - 960  # 120 * 8: the biases differ by 120
    small = ((size + 16384.0 - 16384.0) * 512.0).to(tl.int32)  # steps of 2^-9 below 2^-6
    code = tl.where(size < 0.015625, small, normal) | tl.where(x < 0, 128, 0)
    return tl.where(x == x, code, 127).to(tl.uint8)
