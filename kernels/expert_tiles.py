"""Which tile of tokens a program of a product with experts has: each expert's tokens begin a tile."""

# mypy: disable-error-code="no-untyped-def"
from typing import NamedTuple

from torch import Tensor

from kernels import dispatch
from kernels.language import jit, tl


class PackedTile(NamedTuple):
    """Tokens and outputs of a tile of packed weights, and how Triton is to run it."""

    tokens: int
    outputs: int
    warps: int
    stages: int


LONG = PackedTile(128, 128, 8, 3)


def packed_tile(P: int, X: int, x: Tensor, long: PackedTile = LONG) -> PackedTile:
    """Few tokens an expert: what counts is how much of the weights is under way. `long` is for more than 128 each.

    The best of eight to ten forms of MXFP4 on an H200; other weights have not been measured.
    """
    if x.element_size() > 2 or not x.is_cuda:
        return PackedTile(16, 32, 4, 2)
    if dispatch.fixed() or P <= 16 * X:  # in a fixed order one tile serves all, so that its sums are the same
        return PackedTile(16, 64, 4, 5)
    return PackedTile(64, 128, 8, 3) if P <= 128 * X else long


def num_tiles(P: int, X: int, tokens: int) -> int:
    """Return how many tiles of so many tokens P places of X experts can make at the most; who finds none ends."""
    return min(P, P // tokens + X)


@jit
def tile_of(number, begins_ptr, X, EXPERTS: tl.constexpr, TOKENS: tl.constexpr):
    """Return the expert of a tile, -1 if there is none, its first place, and where the expert's places end."""
    # The expert before which so many tiles, or fewer, have begun.
    each = tl.arange(0, EXPERTS)
    begin = tl.load(begins_ptr + each, mask=each < X, other=0)
    end = tl.load(begins_ptr + each + 1, mask=each < X, other=0)
    tiles = (end - begin + TOKENS - 1) // TOKENS
    upto = tl.cumsum(tiles, 0)
    mine = (number < upto) & (number >= upto - tiles)
    expert = tl.max(tl.where(mine, each, -1), 0)
    first = tl.sum(tl.where(mine, begin + (number - upto + tiles) * TOKENS, 0), 0)
    return expert, first, tl.sum(tl.where(mine, end, 0), 0)
