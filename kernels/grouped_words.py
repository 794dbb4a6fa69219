"""How codes of 4 or 8 bits lie in words of 32, so that a tensor core's fragments come out of them in few instructions.

Inputs go in blocks of 8 (4 bits) or 4 (8 bits) parts. Word t of a block, W words long, holds inputs of all its parts:
halves of an even word are inputs t and t + 1 of the parts' first half, those of the odd word after it the same inputs
of the second. So one shift and one mask make two neighbours of a part, and the parts, which are multiplied one after
another, are whole runs of inputs. Multiplied on the card: a weight of 4 bits costs 1.5 instructions.
"""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels.language import INTERPRETED, jit, tl

UNSIGNED, E4M3 = tl.constexpr(0), tl.constexpr(1)


def pack(codes: Tensor, bits: int, block: int) -> Tensor:
    """Return bytes [F, E], each a code of `bits`, as int32 [F, E * bits / 32]; E is a multiple of `block`."""
    # [F, block, half of the parts, byte of a half word, place in the byte, pair of words, half word]
    each = 8 // bits
    lie = codes.view(codes.shape[0], -1, 2, 2, each, block * bits // 64, 2).permute(0, 1, 5, 2, 6, 3, 4)
    held = lie[..., 0] if each == 1 else lie[..., 0] | lie[..., 1] << 4
    return held.contiguous().view(codes.shape[0], -1).view(torch.int32)


def unpack(words: Tensor, bits: int, block: int) -> Tensor:
    """Return what `pack` was given."""
    held = words.view(torch.uint8)
    lie = (held if bits == 8 else torch.stack((held & 15, held >> 4), -1)).view(
        words.shape[0], -1, block * bits // 64, 2, 2, 2, 8 // bits
    )
    return lie.permute(0, 1, 3, 5, 6, 2, 4).reshape(words.shape[0], -1)


FRAGMENT_ROWS, FRAGMENT_BLOCK = 64, 128


def fragments(words: Tensor, back: bool = False) -> Tensor:
    """Bring words of 4 bits [F, E / 8], in blocks of 128 inputs, into the order of a warpgroup's registers; or `back`.

    F is a multiple of 64. 64 rows of a block are 1024 words together: thread t of 128 has words 4 t to 4 t + 3 of each
    half, which are of words 2 (t % 4) and the next, 8 more in the second half, of rows t / 4 % 8 + t / 32 * 16 and 8
    more.
    """
    F, W = words.shape
    if back:
        lie = words.view(F // 64, W // 16, 2, 4, 8, 4, 2, 2).permute(0, 3, 6, 4, 1, 2, 5, 7)
    else:
        lie = words.view(F // 64, 4, 2, 8, W // 16, 2, 4, 2).permute(0, 4, 5, 1, 3, 6, 2, 7)
    return lie.reshape(F, W)


@jit
def parts(words, BITS: tl.constexpr, KIND: tl.constexpr, DTYPE: tl.constexpr):
    """Return the codes of `words` [R, W] for each part, 8 or 4 of [R, W], as numbers that are more by `excess`."""
    BRAIN: tl.constexpr = tl.bfloat16 == DTYPE
    if INTERPRETED:
        found = _plain_parts(words, BITS, KIND, DTYPE)
    elif BITS == 4:
        found = _nibbles(words, BRAIN)
    elif KIND == E4M3:
        found = _float8(words, BRAIN)
    else:
        found = _bytes(words, BRAIN)
    return found


@jit
def side_by_side(found, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """Return some of the parts [R, W] as one [R, COUNT * W], `COUNT` being 1, 2, 4 or 8.

    Nothing changes threads where they lie as a tensor core wants its first operand.
    """
    ROWS: tl.constexpr = found[0].shape[0]
    SIZE: tl.constexpr = found[0].shape[1] * COUNT
    if COUNT == 1:
        whole = found[FIRST]
    elif COUNT == 2:
        whole = tl.permute(tl.join(found[FIRST], found[FIRST + 1]), (0, 2, 1))
    else:
        first = tl.join(tl.join(found[FIRST], found[FIRST + 1]), tl.join(found[FIRST + 2], found[FIRST + 3]))
        if COUNT == 4:
            whole = tl.permute(first, (0, 3, 2, 1))
        else:
            other = tl.join(tl.join(found[FIRST + 4], found[FIRST + 5]), tl.join(found[FIRST + 6], found[FIRST + 7]))
            whole = tl.permute(tl.join(first, other), (0, 4, 3, 2, 1))
    return tl.reshape(whole, [ROWS, SIZE])


@jit
def excess(BITS: tl.constexpr, KIND: tl.constexpr, DTYPE: tl.constexpr):
    """Return what numbers of `parts` are more than their codes; all of them are exact."""
    of_nibbles = 128.0 if tl.bfloat16 == DTYPE else 64.0
    of_bytes = 0.0 if KIND == E4M3 else -128.0
    return of_nibbles if BITS == 4 else of_bytes


@jit
def _plain_parts(words, BITS: tl.constexpr, KIND: tl.constexpr, DTYPE: tl.constexpr):
    ROWS: tl.constexpr = words.shape[0]
    W: tl.constexpr = words.shape[1]
    both = tl.split(tl.reshape(words, [ROWS, W // 2, 2]))
    found: tuple[object, ...] = ()
    for part in tl.static_range(32 // BITS):
        word = both[part // (16 // BITS)]
        low = word >> part % (16 // BITS) * BITS
        code = tl.reshape(tl.join(low, low >> 16), [ROWS, W]) & (1 << BITS) - 1
        number = float8(code) if KIND == E4M3 else code.to(tl.float32)
        found = (*found, (number + excess(BITS, KIND, DTYPE)).to(DTYPE))
    return found


@jit
def float8(code):
    """Return the float32 numbers of float8_e4m3's bits, by the bits of a float16 of 2^-8 the size."""
    bits = ((code & 0x80) << 8 | (code & 0x7F) << 7).to(tl.uint16)
    return bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@jit
def _nibbles(words, BRAIN: tl.constexpr):
    """Codes as mantissas, whose last bit is worth 1: of bfloat16 from 128 on, of float16 from 64 on."""
    if BRAIN:
        found = tl.inline_asm_elementwise(
            _NIBBLES_OF_BFLOAT16, _EIGHT, [words], dtype=(tl.bfloat16,) * 8, is_pure=True, pack=2
        )
    else:
        found = tl.inline_asm_elementwise(
            _NIBBLES_OF_FLOAT16, _EIGHT, [words], dtype=(tl.float16,) * 8, is_pure=True, pack=2
        )
    return found


@jit
def _bytes(words, BRAIN: tl.constexpr):
    """Codes as mantissas of float32 from 2^23 on, less 2^23 + 128, cut to 16 bits."""
    if BRAIN:
        found = tl.inline_asm_elementwise(
            _BYTES_OF_BFLOAT16, _FOUR, [words], dtype=(tl.bfloat16,) * 4, is_pure=True, pack=2
        )
    else:
        found = tl.inline_asm_elementwise(
            _BYTES_OF_FLOAT16, _FOUR, [words], dtype=(tl.float16,) * 4, is_pure=True, pack=2
        )
    return found


@jit
def _float8(words, BRAIN: tl.constexpr):
    """Sign, exponent and mantissa put where a wider float has them, times what its exponents count more."""
    if BRAIN:
        found = tl.inline_asm_elementwise(
            _FLOAT8_AS_BFLOAT16, _FOUR, [words], dtype=(tl.bfloat16,) * 4, is_pure=True, pack=2
        )
    else:
        found = tl.inline_asm_elementwise(
            _FLOAT8_AS_FLOAT16, _FOUR, [words], dtype=(tl.float16,) * 4, is_pure=True, pack=2
        )
    return found


def _nibbles_asm(mask: str, magic: str, places: tuple[int, ...]) -> str:
    lines = []
    for part in range(8):
        move, place = ("shr.u32", places[part % 4]) if places[part % 4] >= 0 else ("shl.b32", -places[part % 4])
        lines.append(f"{move} t, ${8 + part // 4}, {place}; lop3.b32 ${part}, t, {mask}, {magic}, 0xea;")
    return "{ .reg .b32 t; " + " ".join(lines) + " }"


def _bytes_asm(pair: str) -> str:
    lines = []
    for part in range(4):
        for half, name in enumerate("lh"):
            lines.append(
                f"prmt.b32 t, ${4 + part // 2}, 0x4b000000, 0x744{part % 2 + 2 * half}; "
                f"mov.b32 {name}, t; sub.f32 {name}, {name}, 0f4B000080;"
            )
        lines.append(f"cvt.rn.{pair}.f32 ${part}, h, l;")
    return "{ .reg .b32 t; .reg .f32 l, h; " + " ".join(lines) + " }"


def _float8_asm(pair: str, shift: int, mask: str, more: str) -> str:
    lines = [
        f"shl.b32 s, ${4 + part // 2}, {8 - part % 2 * 8}; shr.u32 t, s, {shift}; and.b32 t, t, {mask}; "
        f"lop3.b32 t, s, 0x80008000, t, 0xea; fma.rn.{pair} ${part}, t, k, n;"
        for part in range(4)
    ]
    return f"{{ .reg .b32 s, t, k, n; mov.b32 k, {more}; mov.b32 n, 0x80008000; " + " ".join(lines) + " }"


# Registers of two neighbouring words, and of what they become.
_EIGHT, _FOUR = tl.constexpr("=r,=r,=r,=r,=r,=r,=r,=r,r,r"), tl.constexpr("=r,=r,=r,=r,r,r")
_NIBBLES_OF_BFLOAT16 = tl.constexpr(_nibbles_asm("0x000f000f", "0x43004300", (0, 4, 8, 12)))
_NIBBLES_OF_FLOAT16 = tl.constexpr(_nibbles_asm("0x00f000f0", "0x54005400", (-4, 0, 4, 8)))
_BYTES_OF_BFLOAT16 = tl.constexpr(_bytes_asm("bf16x2"))
_BYTES_OF_FLOAT16 = tl.constexpr(_bytes_asm("f16x2"))
_FLOAT8_AS_BFLOAT16 = tl.constexpr(_float8_asm("bf16x2", 4, "0x07f007f0", "0x7b807b80"))
_FLOAT8_AS_FLOAT16 = tl.constexpr(_float8_asm("f16x2", 1, "0x3f803f80", "0x5c005c00"))
