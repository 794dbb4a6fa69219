"""Weights of experts that stay 4 bit floats (MXFP4), and how a kernel makes the numbers of them.

A code is a sign, two bits of exponent and one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4 or 6. Put where bfloat16 has the
last of its exponent and the first of its mantissa, it is its number times 2^-126, and one product with a power of two
takes that back and scales it: nothing is rounded. Codes lie in words such that eight of them take eleven operations of
integers: two need no shift of their own for the sign, one none at all.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.grouped_words import side_by_side
from kernels.language import INTERPRETED, cdiv, jit, tl

GROUP, BLOCK, WIDTH = (tl.constexpr(n) for n in (32, 128, 16))  # inputs of a scale, inputs and words of a block
_MAX_EXPONENT = 128  # what the product takes back lies in bfloat16 up to a scale of 2

# Where the four codes of half a word have magnitude and sign.
_PLACES = ((6, 15), (0, 9), (3, 14), (10, 13))


@dataclass(frozen=True)
class Float4Experts:
    """number = 2^(exponent - 127) * code, [X, F, E], an exponent for each 32 inputs; filled by `fill`.

    `words`: int32 [X, F, blocks * 16], blocks of 128 inputs, the last one filled up with zeros. Part p of a block is
    its inputs 16 p to 16 p + 15; word t, if even, has inputs t and t + 1 of parts 0 to 3 in its halves, the odd word
    after it those of parts 4 to 7. `exponents`: int32 [X, blocks, F], four of a block in a word, the first in the low
    byte. `largest`: uint8, the largest of them.
    """

    words: Tensor
    exponents: Tensor
    largest: Tensor
    shape: tuple[int, int, int]

    @staticmethod
    def empty(X: int, F: int, E: int, device: torch.device | str) -> Float4Experts:
        """Return room for the weights of X experts; E is a multiple of 32."""
        if E % GROUP.value:
            raise ValueError(f"{E} inputs are no whole groups of {GROUP.value}")
        blocks = cdiv(E, BLOCK.value)
        words = torch.empty((X, F, blocks * WIDTH.value), dtype=torch.int32, device=device)
        exponents = torch.empty((X, blocks, F), dtype=torch.int32, device=device)
        return Float4Experts(words, exponents, torch.zeros((), dtype=torch.uint8, device=device), (X, F, E))

    def fill(self, expert: int, first: int, codes: Tensor, exponents: Tensor) -> None:
        """Take rows from `first` on of an expert: uint8 codes [rows, E] and exponents [rows, E / 32] on the device."""
        rows, E = codes.shape
        padded = functional.pad(codes, (0, -E % BLOCK.value)).short()
        # [rows, blocks, half of the parts, part, input]
        parts = padded.view(rows, -1, 2, 4, WIDTH.value).unbind(3)
        halves = torch.zeros_like(parts[0])
        for part, (magnitude, sign) in zip(parts, _PLACES, strict=True):
            halves |= (part & 7) << magnitude | part >> 3 << sign
        lie = halves.view(rows, -1, 2, WIDTH.value // 2, 2).transpose(2, 3).contiguous()
        here, groups = slice(first, first + rows), functional.pad(exponents, (0, -exponents.shape[1] % 4))
        self.words[expert, here] = lie.view(torch.int32).view(rows, -1)
        self.exponents[expert, :, here] = groups.contiguous().view(torch.int32).t()
        torch.maximum(self.largest, exponents.amax(), out=self.largest)

    @property
    def fit(self) -> bool:
        """Whether all scales are such as a kernel takes: up to 2."""
        return int(self.largest) <= _MAX_EXPONENT

    @property
    def nbytes(self) -> int:
        """What they take on the device."""
        return self.words.nbytes + self.exponents.nbytes

    def reference(self, expert: int, dtype: torch.dtype) -> Tensor:
        """Return the numbers [F, E] of an expert in plain torch, rounded once."""
        _, F, E = self.shape
        halves = self.words[expert].view(torch.int16).view(F, -1, WIDTH.value // 2, 2, 2).transpose(2, 3)
        lie = halves.reshape(F, -1, 2, WIDTH.value).int()
        codes = torch.stack([lie >> magnitude & 7 | (lie >> sign & 1) << 3 for magnitude, sign in _PLACES], 3)
        bits = (codes & 8) << 28 | (codes & 7) << 22
        numbers = bits.view(torch.float32).view(F, -1, GROUP.value)
        exponents = self.exponents[expert].t().flatten().view(torch.uint8).view(F, -1, 1).int()
        return (numbers * (exponents + 126 << 23).view(torch.float32)).view(F, -1)[:, :E].to(dtype)


@jit
def numbers(words, exponents, DTYPE: tl.constexpr):
    """Return the numbers of a block, [R, 128], of `words` and `exponents` [R, 16]."""
    if INTERPRETED or tl.bfloat16 != DTYPE:
        p = _plain_numbers(words, exponents, DTYPE)
    else:
        p = tl.inline_asm_elementwise(
            _ASM, _REGISTERS, [words, exponents], dtype=(tl.bfloat16,) * 8, is_pure=True, pack=2
        )
    return side_by_side(p, 0, 8)


@jit
def _plain_numbers(words, exponents, DTYPE: tl.constexpr):
    ROWS: tl.constexpr = words.shape[0]
    both = tl.split(tl.reshape(words, [ROWS, WIDTH // 2, 2]))
    found = ()
    for part in tl.static_range(8):
        word = both[part // 4]
        lie = tl.reshape(tl.join(word, word >> 16), [ROWS, WIDTH])
        if part % 4 == 0:
            bits = (lie & 0x1C0) << 16 | (lie & 0x8000) << 16
        elif part % 4 == 1:
            bits = (lie & 0x7) << 22 | (lie & 0x200) << 22
        elif part % 4 == 2:
            bits = (lie & 0x38) << 19 | (lie & 0x4000) << 17
        else:
            bits = (lie & 0x1C00) << 12 | (lie & 0x2000) << 18
        scale = ((exponents >> part // 2 * 8 & 255) + 126 << 23).to(tl.float32, bitcast=True)
        found = found + ((bits.to(tl.float32, bitcast=True) * scale).to(DTYPE),)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no other words for it
    return found


def _asm() -> str:
    """Two neighbouring words are $8 and $9, exponents of their row $10."""
    lines = [f"bfe.u32 t, $10, {8 * group}, 8; mad.lo.u32 m{group}, t, 0x00800080, 0x3f003f00;" for group in range(4)]
    for part in range(8):
        magnitude, sign = _PLACES[part % 4]
        word, by, way = f"${8 + part // 4}", 6 - magnitude, "shl.b32"
        if by < 0:
            by, way = -by, "shr.u32"
        if by == 15 - sign:
            lines.append(
                f"{way} t, {word}, {by}; and.b32 t, t, 0x81c081c0;" if by else f"and.b32 t, {word}, 0x81c081c0;"
            )
        else:
            lines.append(
                f"{way} t, {word}, {by}; and.b32 t, t, 0x01c001c0; shl.b32 s, {word}, {15 - sign}; "
                "lop3.b32 t, s, 0x80008000, t, 0xea;"
            )
        lines.append(f"fma.rn.bf16x2 ${part}, t, m{part // 2}, n;")
    return "{ .reg .b32 s, t, n, m0, m1, m2, m3; mov.b32 n, 0x80008000; " + " ".join(lines) + " }"


_REGISTERS, _ASM = tl.constexpr("=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r"), tl.constexpr(_asm())
