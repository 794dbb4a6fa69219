"""The decodes' loop over a cache in 8 bits: keys and values as words of two codes.

What is even and what is odd of a head's dimensions are products of their own, of half the width.
"""

# mypy: disable-error-code="no-untyped-def"
from kernels.attention_step import HIDDEN, capped, load_kv, weighed
from kernels.float8_kv import beside_codes, two_numbers
from kernels.language import jit, tl

CODES_D = tl.constexpr(32)  # the narrowest head: tensor cores multiply 16 numbers at least


@jit
def attend_codes(
    q_at, live_row, k_base, v_base, table, begin, end, first, context, position, unit, softcap, window, stride_n,
    stride_b,
    ROWS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, B: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Maximum, sum and unscaled values of rows over tiles of keys [begin, end); `q_at` [ROWS] points to the queries."""
    word = tl.arange(0, BLOCK_D // 2)
    inside = live_row[:, None] & (word < D // 2)[None, :]
    q = q_at[:, None] + 2 * word[None, :]
    even = beside_codes(tl.load(q, mask=inside, other=0.0), k_base)
    odd = beside_codes(tl.load(q + 1, mask=inside, other=0.0), k_base)
    k_words, v_words = k_base.to(tl.pointer_type(tl.int16)), v_base.to(tl.pointer_type(tl.int16))
    top, total = tl.full([ROWS], HIDDEN, tl.float32), tl.zeros([ROWS], tl.float32)
    even_acc, odd_acc = tl.zeros([ROWS, BLOCK_D // 2], tl.float32), tl.zeros([ROWS, BLOCK_D // 2], tl.float32)
    for tile in tl.range(begin, end, num_stages=STAGES):
        key = tile * KEYS + tl.arange(0, KEYS)
        live = (key >= first) & (key < context)
        k, v = load_kv(
            k_words, v_words, table, tile, live, word, stride_n // 2, stride_b // 2, D // 2, BLOCK_D // 2, B, KEYS,
            True, tl.int16,
        )  # fmt: skip
        even_k, odd_k = two_numbers(k, even.dtype)
        s = tl.dot(even, tl.trans(even_k), input_precision="ieee")
        s = capped(tl.dot(odd, tl.trans(odd_k), s, input_precision="ieee"), softcap, SOFTCAP)
        seen = live[None, :] & (key[None, :] <= position[:, None])
        if WINDOW:
            seen = seen & (key[None, :] > position[:, None] - window)
        p, decay, top, total = weighed(tl.where(seen, s, HIDDEN), unit, top, total)
        p = p.to(even.dtype)
        even_v, odd_v = two_numbers(v, even.dtype)
        even_acc = tl.dot(p, even_v, even_acc * decay[:, None], input_precision="ieee")
        odd_acc = tl.dot(p, odd_v, odd_acc * decay[:, None], input_precision="ieee")
    return top, total, tl.reshape(tl.join(even_acc, odd_acc), [ROWS, BLOCK_D])
