"""Linear layer whose every output has the same bits whatever else is in the batch (`deterministic`).

Libraries choose tile and split by the number of rows, and with them the order of a sum. Here it is always the order of
E, in steps of the tensor core, in one accumulator: tiles grow with the number of rows, which adds columns beside an
output but changes nothing in its sum. The weights are the tall side also for one row, so that all sizes take the same
instruction.
"""

# mypy: disable-error-code="no-untyped-def"
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels import dispatch
from kernels.float8_weight import BLOCKS, CHANNELS, SPAN, Float8Weight, as_numbers, parts_of
from kernels.language import cdiv, jit_alike, tl


def fixed_linear(
    x: Tensor, weight: Tensor | Float8Weight, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Return `x` [T, E] times `weight` [F, E] transposed, plus `bias` [F]: [T, F] in x's dtype, or in `out`'s."""
    codes = weight.codes if isinstance(weight, Float8Weight) else weight
    if x.dim() != 2 or codes.dim() != 2 or codes.shape[1] != x.shape[1] or not codes.is_contiguous():
        raise ValueError(f"weight has shape {tuple(weight.shape)}; x {tuple(x.shape)} needs contiguous [F, E]")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(bias.shape)}; it must be ({weight.shape[0]},)")
    size = (x.shape[0], weight.shape[0])
    if out is None:
        out = torch.empty(size, dtype=x.dtype, device=x.device)
    elif out.shape != size or not out.is_contiguous():
        raise ValueError(f"out has shape {tuple(out.shape)}; it must be contiguous {size}")
    if dispatch.form(x) != "triton":
        return out.copy_(reference(x, weight, bias))
    if x.shape[0]:
        _launch(x if x.stride(1) == 1 else x.contiguous(), weight, bias, out)
    return out


def reference(x: Tensor, weight: Tensor | Float8Weight, bias: Tensor | None = None) -> Tensor:
    """Multiply with torch."""
    return functional.linear(x, weight.reference(x.dtype) if isinstance(weight, Float8Weight) else weight, bias)


class _Tile(NamedTuple):
    """Weight rows, tokens and columns of a tile, and how Triton is to run it."""

    rows: int
    tokens: int
    depth: int
    warps: int
    stages: int


def _tile(T: int, x: Tensor, *, parts: bool) -> _Tile:
    """Few rows: small tiles and many in flight, for memory's sake; many: what feeds two warpgroups, if the registers
    need not hold a sum of each part as well."""
    if x.element_size() > 2 or not x.is_cuda:
        return _Tile(64, 16, 32, 4, 2)
    if T <= 16:
        return _Tile(64, 16, 64, 4, 8)
    if T <= 128:
        return _Tile(64, 64, 64, 4, 6)
    return _Tile(64, 128, 64, 4, 5) if T <= 512 or parts else _Tile(128, 256, 64, 8, 3)


def _launch(x: Tensor, weight: Tensor | Float8Weight, bias: Tensor | None, out: Tensor) -> None:
    T, E = x.shape
    F = weight.shape[0]
    codes, scales, form = parts_of(weight)
    tile = _tile(T, x, parts=form == BLOCKS.value)
    _fixed_linear_kernel[(cdiv(F, tile.rows) * cdiv(T, tile.tokens),)](
        x, codes, scales, out if bias is None else bias, out, T, F, E, x.stride(0),
        ROWS=tile.rows, TOKENS=tile.tokens, DEPTH=tile.depth, STAGES=tile.stages, BIAS=bias is not None,
        WHOLE=E % tile.depth == 0, SCALES=form, num_warps=tile.warps,
    )  # fmt: skip


@jit_alike("T")
def _fixed_linear_kernel(
    x_ptr, weight_ptr, scale_ptr, bias_ptr, out_ptr, T, F, E, x_stride,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, BIAS: tl.constexpr,
    WHOLE: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    # Bands of eight token tiles: their x stays in L2 while the weights pass by once.
    row_tiles = tl.cdiv(F, ROWS)
    band = tl.program_id(0) // (8 * row_tiles)
    height = tl.minimum(tl.cdiv(T, TOKENS) - band * 8, 8)
    within = tl.program_id(0) % (8 * row_tiles)
    token = (band * 8 + within % height) * TOKENS + tl.arange(0, TOKENS)
    row = within // height * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, DEPTH)
    live, real = token < T, row < F
    # Tokens and rows behind the end repeat the last one and are not stored.
    inputs = x_ptr + tl.minimum(token, T - 1).to(tl.int64)[None, :] * x_stride + k[:, None]
    weights = weight_ptr + tl.minimum(row, F - 1).to(tl.int64)[:, None] * E + k[None, :]
    acc = tl.zeros([ROWS, TOKENS], tl.float32)
    for at in tl.range(0, E, DEPTH, num_stages=STAGES):
        if WHOLE:
            w, x = tl.load(weights + at), tl.load(inputs + at)
        else:
            w = tl.load(weights + at, mask=(at + k < E)[None, :], other=0.0)
            x = tl.load(inputs + at, mask=(at + k < E)[:, None], other=0.0)
        if SCALES == BLOCKS:
            scale = tl.load(scale_ptr + tl.minimum(row, F - 1) // SPAN * tl.cdiv(E, SPAN) + at // SPAN)
            acc += tl.dot(as_numbers(w, x.dtype), x, input_precision="ieee") * scale[:, None]
        elif SCALES == CHANNELS:
            acc = tl.dot(as_numbers(w, x.dtype), x, acc, input_precision="ieee")
        else:
            acc = tl.dot(w, x, acc, input_precision="ieee")
    if SCALES == CHANNELS:
        acc *= tl.load(scale_ptr + tl.minimum(row, F - 1))[:, None]
    if BIAS:
        acc += tl.load(bias_ptr + row, mask=real, other=0.0).to(tl.float32)[:, None]
    to = out_ptr + token.to(tl.int64)[:, None] * F + row[None, :]
    tl.store(to, tl.trans(acc).to(out_ptr.dtype.element_ty), mask=live[:, None] & real[None, :])
