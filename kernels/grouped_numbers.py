"""Words of 4 bit weights to the numbers that a Hopper's tensor cores multiply, in registers (see `grouped_hopper`).

Codes become mantissas by a shift and one LOP3, their zeros are taken off exactly, and nothing changes threads: the
conversions of layouts below are asserted to be none.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment,misc"
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def words_of(words, GROUPS: gl.constexpr, BLOCKS: gl.constexpr, A_LAYOUT: gl.constexpr):
    """Return a stage's words of each block, [outputs, 16], where the tensor cores want what is made of them."""
    # Thread t of a warpgroup holds words 4 t to 4 t + 3 of both halves of 4 KB of words.
    layout: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [2, 0]] if BLOCKS == 1 else [[0, 1], [0, 2], [2, 0], [4, 0]],
        [[0, 4], [0, 8], [0, 16], [0, 32], [0, 64]],
        [[0, 128], [1, 0]] if GROUPS == 1 else [[0, 128], [1, 0], [4 * BLOCKS, 0]],
        [],
        [4 * GROUPS * BLOCKS, 256],
    )
    held = words.load(layout).reshape([GROUPS, BLOCKS, 2, 4, 8, 4, 2, 2]).permute((0, 3, 6, 4, 2, 5, 7, 1))
    if BLOCKS == 1:
        found = (gl.convert_layout(held.reshape([64 * GROUPS, 16]), A_LAYOUT, assert_trivial=True),)
    else:
        a, b = held.reshape([64 * GROUPS, 16, 2]).split()
        found = (
            gl.convert_layout(a, A_LAYOUT, assert_trivial=True), gl.convert_layout(b, A_LAYOUT, assert_trivial=True)
        )  # fmt: skip
    return found


@gluon.jit
def scales_of(scales, block: gl.constexpr, GROUPS: gl.constexpr, SPANS: gl.constexpr):
    """Return scales with zeros, [outputs, 1] for each span of a block: a thread has those of its outputs."""
    # The memory itself is not permuted: Triton 3.6 forgets that of a layout without swizzle.
    layout: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 8]],
        [[0, 0], [0, 0], [0, 1], [0, 2], [0, 4]],
        [[0, 16], [0, 32]] if GROUPS == 1 else [[0, 16], [0, 32], [0, 64]],
        [],
        [1, 64 * GROUPS],
    )
    found = ()
    for span in gl.static_range(SPANS):
        found += (scales.slice(block * SPANS + span, 1).load(layout).permute((1, 0)),)
    return found


@gluon.jit
def numbers_of(held, scales, SPANS: gl.constexpr, BRAIN: gl.constexpr, A_LAYOUT: gl.constexpr):
    """Return codes less zeros, [outputs, inputs] for each span, as a product takes them from registers."""
    above = ()
    for span in gl.static_range(SPANS):
        zero = gl.convert_layout(scales[span], A_LAYOUT, assert_trivial=True) & 0xFFFF
        above += (zero * 0x00010001 + 0x43004300 if BRAIN else zero * 0x00100010 + 0x54005400,)
    if BRAIN:
        if SPANS == 1:
            p = gl.inline_asm_elementwise(_BRAIN_1, _EIGHT_1, [held, above[0]], (gl.bfloat16,) * 8, True, 2)
        elif SPANS == 2:
            p = gl.inline_asm_elementwise(_BRAIN_2, _EIGHT_2, [held, above[0], above[1]], (gl.bfloat16,) * 8, True, 2)
        else:
            p = gl.inline_asm_elementwise(
                _BRAIN_4, _EIGHT_4, [held, above[0], above[1], above[2], above[3]], (gl.bfloat16,) * 8, True, 2
            )
    elif SPANS == 1:
        p = gl.inline_asm_elementwise(_HALF_1, _EIGHT_1, [held, above[0]], (gl.float16,) * 8, True, 2)
    elif SPANS == 2:
        p = gl.inline_asm_elementwise(_HALF_2, _EIGHT_2, [held, above[0], above[1]], (gl.float16,) * 8, True, 2)
    else:
        p = gl.inline_asm_elementwise(
            _HALF_4, _EIGHT_4, [held, above[0], above[1], above[2], above[3]], (gl.float16,) * 8, True, 2
        )
    a, b, c, d = gl.join(p[0], p[1]), gl.join(p[2], p[3]), gl.join(p[4], p[5]), gl.join(p[6], p[7])
    if SPANS == 4:
        numbers = (_one(a, A_LAYOUT), _one(b, A_LAYOUT), _one(c, A_LAYOUT), _one(d, A_LAYOUT))
    elif SPANS == 2:
        numbers = (_one(gl.join(a, b), A_LAYOUT), _one(gl.join(c, d), A_LAYOUT))
    else:
        numbers = (_one(gl.join(gl.join(a, b), gl.join(c, d)), A_LAYOUT),)
    return numbers


@gluon.jit
def _one(parts, A_LAYOUT: gl.constexpr):
    """Bring parts [outputs, 16, 2, ...] of a span behind one another."""
    OUTPUTS: gl.constexpr = parts.shape[0]
    if len(parts.shape) == 3:
        parts = parts.permute((0, 2, 1))
    elif len(parts.shape) == 4:
        parts = parts.permute((0, 3, 2, 1))
    else:
        parts = parts.permute((0, 4, 3, 2, 1))
    return gl.convert_layout(parts.reshape([OUTPUTS, parts.numel // OUTPUTS]), A_LAYOUT, assert_trivial=True)


@gluon.jit
def upper_half(scales, BRAIN_SCALES: gl.constexpr, ACC_LAYOUT: gl.constexpr):
    """Return the upper 16 bits of each word, float32 [outputs, 1]."""
    held = gl.convert_layout(scales, ACC_LAYOUT, assert_trivial=True)
    if BRAIN_SCALES:
        scale = (held & -0x10000).to(gl.float32, bitcast=True)
    else:
        scale = (held >> 16).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    return scale


def _assembly(spans: int, mask: str, magic: str, places: tuple[int, ...], pair: str) -> str:
    lines = []
    for part in range(8):
        move, place = ("shr.u32", places[part % 4]) if places[part % 4] >= 0 else ("shl.b32", -places[part % 4])
        lines.append(
            f"{move} t, ${8 + part // 4}, {place}; lop3.b32 t, t, {mask}, {magic}, 0xea; "
            f"sub.{pair} ${part}, t, ${10 + part * spans // 8 * 2};"
        )
    return "{ .reg .b32 t; " + " ".join(lines) + " }"


_EIGHT_1, _EIGHT_2, _EIGHT_4 = (gl.constexpr(",".join(["=&r"] * 8 + ["r"] * (2 + 2 * spans))) for spans in (1, 2, 4))
_BRAIN_1, _BRAIN_2, _BRAIN_4 = (
    gl.constexpr(_assembly(spans, "0x000f000f", "0x43004300", (0, 4, 8, 12), "bf16x2")) for spans in (1, 2, 4)
)
_HALF_1, _HALF_2, _HALF_4 = (
    gl.constexpr(_assembly(spans, "0x00f000f0", "0x54005400", (-4, 0, 4, 8), "f16x2")) for spans in (1, 2, 4)
)
