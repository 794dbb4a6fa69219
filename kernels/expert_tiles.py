"""What products with experts share: checks, the reference, and tiles, of which each expert's tokens begin one."""

# mypy: disable-error-code="no-untyped-def"
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from kernels import dispatch
from kernels.expert_order import ExpertOrder
from kernels.language import jit, tl


class PackedTile(NamedTuple):
    """Tokens and outputs of a tile of packed weights, and how Triton is to run it."""

    tokens: int
    outputs: int
    warps: int
    stages: int


def check_tokens(x: Tensor, order: ExpertOrder, F: int, E: int, bias: Tensor | None, gather: bool) -> None:
    """Raise ValueError naming the argument that does not fit experts of F outputs and E inputs."""
    P, X = order.rows.shape[0], order.begins.shape[0] - 1
    if bias is not None and (bias.shape != (X, F) or not bias.is_contiguous()):
        raise ValueError(f"bias has shape {tuple(bias.shape)}; it must be contiguous {(X, F)}")
    if x.dim() != 2 or x.shape[1] != E or not (gather or x.shape[0] == P):
        raise ValueError(f"x has shape {tuple(x.shape)}; it must be [{'T' if gather else P}, {E}]")


def expert_by_expert(
    x: Tensor, numbers: Callable[[int], Tensor], F: int, order: ExpertOrder, bias: Tensor | None, gather: bool
) -> Tensor:
    """Multiply in plain torch with the `numbers` [F, E] of each expert that has tokens."""
    taken = x[order.rows] if gather else x
    out = x.new_empty((len(taken), F))
    for expert, span in order.spans():
        out[span] = functional.linear(taken[span], numbers(expert), None if bias is None else bias[expert])
    return out


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
