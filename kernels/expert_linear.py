"""A linear layer with a weight for each expert: every token is multiplied with that of the expert it stands with."""

# mypy: disable-error-code="no-untyped-def"
from typing import NamedTuple

import torch
from torch import Tensor

from kernels import activation, dispatch
from kernels.expert_order import ExpertOrder
from kernels.expert_tiles import (
    FEW,
    check_tokens,
    expert_by_expert,
    inside_and_after,
    num_tiles,
    store_tile,
    tile_of,
    weight_row,
)
from kernels.language import cdiv, jit_alike, next_power_of_2, tl


def expert_linear(
    x: Tensor, weight: Tensor, order: ExpertOrder, bias: Tensor | None = None, *, gather: bool, act: int | None = None
) -> Tensor:
    """Return [P, F]: at each place of `order` its token times the transposed `weight` [X, F, E] of its expert.

    `bias` [X, F] is added, each expert's to its tokens. `x` is [P, E], in that order; with `gather` [T, E], from which
    the tokens are taken. With `act`, one of `activation`'s, the first half of the outputs are gates of the second:
    [P, F / 2].
    """
    P, X = order.rows.shape[0], order.begins.shape[0] - 1
    if weight.dim() != 3 or weight.shape[0] != X or not weight.is_contiguous():
        raise ValueError(f"weight has shape {tuple(weight.shape)}; it must be contiguous [{X}, F, E]")
    F, E = weight.shape[1:]
    check_tokens(x, order, F, E, bias, gather)
    if dispatch.form(x) != "triton":
        return reference(x, weight, order, bias, gather, act)
    inside, after = inside_and_after(P, X, act)
    out = torch.empty((P, F if inside is None else F // 2), dtype=x.dtype, device=x.device)
    if P:
        _launch(x if x.stride(1) == 1 else x.contiguous(), weight, order, bias, gather, inside, out)
    return out if after is None else activation.act_and_mul(out, after)


def reference(
    x: Tensor, weight: Tensor, order: ExpertOrder, bias: Tensor | None, gather: bool, act: int | None = None
) -> Tensor:
    """Multiply expert by expert in plain torch."""
    return expert_by_expert(x, weight.__getitem__, weight.shape[1], order, bias, gather, act)


class _Tile(NamedTuple):
    """Tokens, outputs and inputs of a tile, and how Triton is to run it."""

    tokens: int
    outputs: int
    depth: int
    warps: int
    stages: int


def _tile(P: int, X: int, x: Tensor) -> _Tile:
    """Few tokens an expert: what counts is how much of the weights is under way. The best of nine forms on an H200."""
    if x.element_size() > 2 or not x.is_cuda:
        return _Tile(16, 64, 32, 4, 2)
    if dispatch.fixed() or P <= FEW * X:  # in a fixed order one tile serves all, so that its sums are the same
        return _Tile(16, 64, 128, 4, 4)
    if P <= 48 * X:
        return _Tile(32, 128, 128, 4, 3)
    return _Tile(64, 256, 64, 8, 4) if P <= 96 * X else _Tile(128, 256, 64, 8, 4)


def _launch(
    x: Tensor, weight: Tensor, order: ExpertOrder, bias: Tensor | None, gather: bool, act: int | None, out: Tensor
) -> None:
    P, (X, F, E) = out.shape[0], weight.shape
    tile = _tile(P, X, x)
    _expert_linear_kernel[(num_tiles(P, X, tile.tokens), cdiv(F, tile.outputs))](
        x, weight, weight if bias is None else bias, order.rows, order.begins, out, X, F, E, x.stride(0),
        GATHER=gather, BIAS=bias is not None, ACT=act, EXPERTS=next_power_of_2(X), TOKENS=tile.tokens,
        OUTPUTS=tile.outputs, DEPTH=tile.depth, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip


@jit_alike("X")
def _expert_linear_kernel(
    x_ptr, weight_ptr, bias_ptr, rows_ptr, begins_ptr, out_ptr, X, F, E, x_stride,
    GATHER: tl.constexpr, BIAS: tl.constexpr, ACT: tl.constexpr, EXPERTS: tl.constexpr, TOKENS: tl.constexpr,
    OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    expert, first, end = tile_of(tl.program_id(0), begins_ptr, X, EXPERTS, TOKENS)
    if expert < 0:
        return
    expert = expert.to(tl.int64)
    place = first + tl.arange(0, TOKENS)
    live = place < end
    row = tl.load(rows_ptr + place, mask=live, other=0) if GATHER else tl.where(live, place, 0)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    real = output < F
    output = weight_row(output, F, ACT)
    k = tl.arange(0, DEPTH)
    inputs = x_ptr + row.to(tl.int64)[:, None] * x_stride + k[None, :]
    weights = weight_ptr + expert * F * E + tl.where(real, output, 0).to(tl.int64)[None, :] * E + k[:, None]
    acc = tl.zeros([TOKENS, OUTPUTS], tl.float32)
    for at in tl.range(0, E, DEPTH, num_stages=STAGES):
        inside = at + k < E
        x = tl.load(inputs + at, mask=inside[None, :], other=0.0)
        w = tl.load(weights + at, mask=inside[:, None], other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    if BIAS:
        acc += tl.load(bias_ptr + expert * F + output, mask=real, other=0.0).to(tl.float32)[None, :]
    store_tile(acc, out_ptr, place, live, F, OUTPUTS, ACT)
