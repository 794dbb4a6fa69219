"""The inverse of a unit lower triangular tile, inside a kernel.

Blocks of 16 on the diagonal are inverted row by row, all at once; then pairs of inverted blocks become one of twice the
size: of (A 0; C B) the inverse has -B^-1 C A^-1 in its corner. Nothing grows on the way beyond the inverse's own
numbers. (Powers of the tile, which need no rows, would: by 1e17 for 64 equal keys.)
"""

# mypy: disable-error-code="no-untyped-def"
from kernels.language import jit, tl

_BLOCK = tl.constexpr(16)


@jit
def unit_lower_inverse(lower, N: tl.constexpr):
    """The inverse [N, N] of 1 + `lower` [N, N] float32, which is 0 on the diagonal and above; N is 64.

    All of it is float32: the products are small, and tensor cores would round.
    """
    blocks: tl.constexpr = N // _BLOCK
    own = tl.arange(0, blocks)[:, None, None, None] == tl.arange(0, blocks)[None, None, :, None]
    diagonal = tl.sum(tl.where(own, tl.reshape(lower, [blocks, _BLOCK, blocks, _BLOCK]), 0.0), 2)
    row, column = tl.arange(0, _BLOCK)[None, :, None], tl.arange(0, _BLOCK)[None, None, :]
    inverse = tl.where(row == column, 1.0, 0.0) + tl.zeros([blocks, _BLOCK, _BLOCK], dtype=tl.float32)
    for n in range(1, _BLOCK):
        line = tl.sum(tl.where(row == n, diagonal, 0.0), 1)
        made = tl.sum(line[:, :, None] * inverse, 1)  # the rows behind n are still those of 1, and `line` is 0 there
        inverse -= tl.where(row == n, made[:, None, :], 0.0)
    inverse = _joined(inverse, lower, N, _BLOCK)
    return tl.reshape(_joined(inverse, lower, N, 2 * _BLOCK), [N, N])


@jit
def _joined(inverse, lower, N: tl.constexpr, SIZE: tl.constexpr):
    """The inverses [N / 2 SIZE, 2 SIZE, 2 SIZE] of pairs of blocks on the diagonal, from those of the blocks."""
    pairs: tl.constexpr = N // (2 * SIZE)
    second = tl.arange(0, 2)[None, :, None, None]
    halves = tl.reshape(inverse, [pairs, 2, SIZE, SIZE])
    a, b = tl.sum(tl.where(second == 0, halves, 0.0), 1), tl.sum(tl.where(second == 1, halves, 0.0), 1)
    own = tl.arange(0, pairs)[:, None, None, None] == tl.arange(0, pairs)[None, None, :, None]
    pair = tl.sum(tl.where(own, tl.reshape(lower, [pairs, 2 * SIZE, pairs, 2 * SIZE]), 0.0), 2)
    quarters = tl.reshape(pair, [pairs, 2, SIZE, 2, SIZE])
    down, right = tl.arange(0, 2)[None, :, None, None, None], tl.arange(0, 2)[None, None, None, :, None]
    c = tl.sum(tl.sum(tl.where((down == 1) & (right == 0), quarters, 0.0), 3), 1)
    made = tl.dot(b, tl.dot(c, a, input_precision="ieee"), input_precision="ieee")
    whole = tl.where(down == right, halves[:, :, :, None, :], 0.0)
    whole = tl.where((down == 1) & (right == 0), -made[:, None, :, None, :], whole)
    return tl.reshape(whole, [pairs, 2 * SIZE, 2 * SIZE])
