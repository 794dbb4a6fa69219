"""What products with experts share: checks, the reference, and tiles, of which each expert's tokens begin one."""

# mypy: disable-error-code="no-untyped-def"
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from kernels import activation, dispatch
from kernels.activation import gated
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
    x: Tensor, numbers: Callable[[int], Tensor], F: int, order: ExpertOrder, bias: Tensor | None, gather: bool,
    act: int | None,
) -> Tensor:  # fmt: skip
    """Multiply in plain torch with the `numbers` [F, E] of each expert that has tokens."""
    taken = x[order.rows] if gather else x
    out = x.new_empty((len(taken), F))
    for expert, span in order.spans():
        out[span] = functional.linear(taken[span], numbers(expert), None if bias is None else bias[expert])
    return out if act is None else activation.act_and_mul(out, act)


FEW = 16  # tokens an expert, for which a tile has room


def inside_and_after(P: int, X: int, act: int | None) -> tuple[int | None, int | None]:
    """Return which gate a product of gates and ups has inside (where tokens are few a launch is much) or after it."""
    return (act, None) if dispatch.fixed() or P <= FEW * X else (None, act)


LONG = PackedTile(128, 128, 8, 3)


def packed_tile(P: int, X: int, x: Tensor, long: PackedTile = LONG) -> PackedTile:
    """Few tokens an expert: what counts is how much of the weights is under way. `long` is for more than 128 each.

    The best of eight to ten forms of MXFP4 on an H200; other weights have not been measured.
    """
    if x.element_size() > 2 or not x.is_cuda:
        return PackedTile(16, 32, 4, 2)
    if dispatch.fixed() or P <= FEW * X:  # in a fixed order one tile serves all, so that its sums are the same
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


@jit
def weight_row(output, F, ACT: tl.constexpr):
    """The row of an expert's weight for an output of a tile: gates and ups, half of the rows apart, are neighbours."""
    row = output
    if ACT is not None:
        row = output // 2 + output % 2 * (F // 2)
    return row


@jit
def store_tile(acc, out_ptr, place, live, F, OUTPUTS: tl.constexpr, ACT: tl.constexpr):
    """Write a tile [TOKENS, OUTPUTS] to [P, F], or what its gates leave of its ups to [P, F / 2]."""
    if ACT is not None:
        gate, up = tl.split(tl.reshape(acc, [acc.shape[0], OUTPUTS // 2, 2]))
        output = tl.program_id(1) * (OUTPUTS // 2) + tl.arange(0, OUTPUTS // 2)
        to = out_ptr + place.to(tl.int64)[:, None] * (F // 2) + output[None, :]
        y = gated(gate, up, ACT).to(out_ptr.dtype.element_ty)
        tl.store(to, y, mask=live[:, None] & (output < F // 2)[None, :])
    else:
        output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        to = out_ptr + place.to(tl.int64)[:, None] * F + output[None, :]
        tl.store(to, acc.to(out_ptr.dtype.element_ty), mask=live[:, None] & (output < F)[None, :])
