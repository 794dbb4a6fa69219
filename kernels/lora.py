"""Low-rank additions (LoRA) behind a product, of another adapter for each row: out += (x A^T) B^T.

Two launches: the first shrinks rows to the rank, the second expands them into the product's output. Both look at tiles
of rows for each adapter, so rows need no sorting, and a tile that has no row of an adapter costs one load: the index
is device data, and a recorded step serves any mix of adapters.

Source: Punica (arXiv 2310.18547) and S-LoRA (arXiv 2311.03285) for the batching of rows of many adapters.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kernels import dispatch
from kernels.language import cdiv, jit_alike, next_power_of_2, tl
from kernels.native import record

MAX_PARTS = 3  # projections stacked in one product: q, k and v


class LoraRows:
    """Which adapter each row of a step has: `index` int32 [T], 0 for none, n for the n-th."""

    def __init__(self, index: Tensor) -> None:
        self.index = index

    @cached_property
    def groups(self) -> list[tuple[int, Tensor]]:
        """The adapters there are, each with its rows int64 [n]. On the host: for what is not recorded."""
        found = sorted(set(self.index.tolist()))
        return [(n - 1, (self.index == n).nonzero()[:, 0]) for n in found if n]


@dataclass(frozen=True)
class LoraWeights:
    """L adapters' weights for a product of P stacked projections, `widths` outputs each, of rank R (smaller: zeros).

    `down` [L, P * R, I] are A, one projection's below the other's, `up` [L, sum of widths, R] are B, already scaled.
    """

    down: Tensor
    up: Tensor
    widths: tuple[int, ...]

    @property
    def rank(self) -> int:
        """R."""
        return self.up.shape[2]

    @cached_property
    def up_by_rank(self) -> Tensor:
        """B the other way round, [L, R, O], as native code reads it."""
        return self.up.transpose(1, 2).contiguous()

    def put(self, n: int, down: Tensor | None, up: Tensor | None) -> None:
        """Give the n-th adapter these weights, None: zeros. In place: recorded steps read them where they are."""
        for own, given in ((self.down[n], down), (self.up[n], up)):
            own.zero_() if given is None else own.copy_(given)
        by_rank: Tensor | None = self.__dict__.get("up_by_rank")
        if by_rank is not None:
            by_rank[n] = self.up[n].t()


def add_lora(x: Tensor, weights: LoraWeights, rows: LoraRows, out: Tensor, scale: float = 1.0) -> None:
    """Add each row's low-rank part of `x` [T, I], times `scale`, to `out` [T, O] in place.

    Raises ValueError for shapes that do not fit.
    """
    _check(x, weights, rows.index, out)
    form = dispatch.form(x)
    if form == "triton":
        _launch(x, weights, rows.index, out, scale)
    elif form == "native" and x.dtype == out.dtype == weights.up.dtype == torch.float32:
        _native(x, weights, rows.index, out, scale)
    else:
        reference(x, weights, rows, out, scale)


def _check(x: Tensor, weights: LoraWeights, index: Tensor, out: Tensor) -> None:
    (L, PR, size), P, R = weights.down.shape, len(weights.widths), weights.rank
    if not 1 <= P <= MAX_PARTS or PR != P * R or weights.up.shape != (L, sum(weights.widths), R):
        raise ValueError(f"down {tuple(weights.down.shape)} and up {tuple(weights.up.shape)} must be of {P} parts")
    if x.shape != (len(index), size) or out.shape != (len(index), weights.up.shape[1]):
        raise ValueError(f"x {tuple(x.shape)} and out {tuple(out.shape)} must fit {len(index)} rows and the weights")
    if index.dtype != torch.int32 or x.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError(f"the index must be int32, not {index.dtype}, and rows of x and out dense")


def reference(x: Tensor, weights: LoraWeights, rows: LoraRows, out: Tensor, scale: float) -> None:
    """Add in plain torch, adapter by adapter; float32 inside."""
    R = weights.rank
    for adapter, chosen in rows.groups:
        low = x[chosen].float() @ weights.down[adapter].float().t()
        up, parts, begin = weights.up[adapter].float(), [], 0
        for n, width in enumerate(weights.widths):
            parts.append(low[:, n * R : (n + 1) * R] @ up[begin : begin + width].t())
            begin += width
        out[chosen] = (out[chosen].float() + torch.cat(parts, 1) * scale).to(out.dtype)


def _native(x: Tensor, weights: LoraWeights, index: Tensor, out: Tensor, scale: float) -> None:
    (T, size), (_, PR, _), up = x.shape, weights.down.shape, weights.up_by_rank
    low = record.empty((T, PR))
    ends = tuple(sum(weights.widths[: n + 1]) for n in range(len(weights.widths)))
    shrink = tuple(each.data_ptr() for each in (x, weights.down, index, low))
    expand = tuple(each.data_ptr() for each in (low, up, index, out))
    numbers = (T, out.shape[1], weights.rank, len(ends), out.stride(0), *ends)
    record.call(
        [
            record.Record(record.LORA_SHRINK, (T, size, PR, x.stride(0)), shrink),
            record.Record(record.LORA_EXPAND, numbers, expand, (scale,)),
        ],
        (x, weights.down, up, index, low, out),
    )


_FEW = 256  # rows up to which tiles are of 16: with more, larger tiles read the weights less often
_INPUTS = 1024  # inputs of a program: more programs than rows have tiles, or a step of one row would wait for one


def _launch(x: Tensor, weights: LoraWeights, index: Tensor, out: Tensor, scale: float) -> None:
    T, size = x.shape
    if T == 0:
        return
    L, PR, _ = weights.down.shape
    R, widths = weights.rank, (*weights.widths, 0, 0)[:MAX_PARTS]
    tile = 16 if T <= _FEW or dispatch.fixed() else 64
    splits = cdiv(size, _INPUTS)
    low = torch.empty(splits, T, PR, dtype=torch.float32, device=x.device)
    columns = min(64 if tile == 16 else 32, max(16, next_power_of_2(PR)))
    column_tiles = cdiv(PR, columns)
    _shrink_kernel[(cdiv(T, tile), L, splits * column_tiles)](
        x, weights.down, index, low, T, x.stride(0), SIZE=size, PR=PR, INPUTS=_INPUTS, TILES=column_tiles,
        ROWS=tile, COLUMNS=columns, BLOCK=min(128 if tile == 16 else 32, max(16, next_power_of_2(size))), num_warps=4,
    )  # fmt: skip
    outputs = 64 if out.shape[1] >= 64 else 32
    _expand_kernel[(cdiv(T, tile), L, sum(cdiv(width, outputs) for width in widths))](
        low, weights.up, index, out, T, out.stride(0), scale, *widths, PR=PR, R=R, SPLITS=splits, ROWS=tile,
        OUTPUTS=outputs, RANK=min(32, max(16, next_power_of_2(R))), num_warps=4,
    )  # fmt: skip


@jit_alike("T")
def _shrink_kernel(
    x_ptr, down_ptr, index_ptr, low_ptr, T, x_stride, SIZE: tl.constexpr, PR: tl.constexpr, INPUTS: tl.constexpr,
    TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum over a share of the inputs; rows of other adapters, and of none, are neither read nor written."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    adapter = tl.program_id(1)
    split = tl.program_id(2) // TILES
    column = tl.program_id(2) % TILES * COLUMNS + tl.arange(0, COLUMNS)
    mine = tl.load(index_ptr + row, mask=row < T, other=0) == adapter + 1
    if tl.max(mine.to(tl.int32), 0) > 0:
        rows = x_ptr + row.to(tl.int64)[:, None] * x_stride
        columns = down_ptr + (adapter.to(tl.int64) * PR + column)[None, :] * SIZE
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for begin in range(0, INPUTS, BLOCK):
            at = split * INPUTS + begin + tl.arange(0, BLOCK)
            left = tl.load(rows + at[None, :], mask=mine[:, None] & (at < SIZE)[None, :], other=0.0)
            right = tl.load(columns + at[:, None], mask=(at < SIZE)[:, None] & (column < PR)[None, :], other=0.0)
            total = tl.dot(left.to(right.dtype), right, total, input_precision="ieee")
        to = low_ptr + (split.to(tl.int64) * T + row)[:, None] * PR + column[None, :]
        tl.store(to, total, mask=mine[:, None] & (column < PR)[None, :])


@jit_alike("T")
def _expand_kernel(
    low_ptr, up_ptr, index_ptr, out_ptr, T, out_stride, scale, first, second, third, PR: tl.constexpr,
    R: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """Add the shares of the inputs up, always in the same order, and expand them into outputs of one projection."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    adapter = tl.program_id(1)
    tile = tl.program_id(2)
    mine = tl.load(index_ptr + row, mask=row < T, other=0) == adapter + 1
    if tl.max(mine.to(tl.int32), 0) > 0:
        part, begin, end = 0, 0, first
        before = (first + OUTPUTS - 1) // OUTPUTS
        between = before + (second + OUTPUTS - 1) // OUTPUTS
        if tile >= between:
            part, begin, end = 2, first + second, first + second + third
            tile -= between
        elif tile >= before:
            part, begin, end = 1, first, first + second
            tile -= before
        output = begin + tile * OUTPUTS + tl.arange(0, OUTPUTS)
        outputs = up_ptr + (adapter.to(tl.int64) * (first + second + third) + output)[None, :] * R
        added = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for base in range(0, R, RANK):
            rank = base + tl.arange(0, RANK)
            known = mine[:, None] & (rank < R)[None, :]
            at = low_ptr + row.to(tl.int64)[:, None] * PR + part * R + rank[None, :]
            low = tl.zeros([ROWS, RANK], tl.float32)
            for split in range(SPLITS):
                low += tl.load(at + split * T.to(tl.int64) * PR, mask=known, other=0.0)
            up = tl.load(outputs + rank[:, None], mask=(output < end)[None, :] & (rank < R)[:, None], other=0.0)
            added = tl.dot(low.to(up.dtype), up, added, input_precision="ieee")
        to = out_ptr + row.to(tl.int64)[:, None] * out_stride + output[None, :]
        there = mine[:, None] & (output < end)[None, :]
        total = tl.load(to, mask=there, other=0.0).to(tl.float32) + added * scale
        tl.store(to, total.to(out_ptr.dtype.element_ty), mask=there)
