"""The product of 2 to 64 rows on the tensor cores, its sum split between programs if tiles are few (see `few_rows`)."""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels import dependent
from kernels.activation import gated
from kernels.few_rows_product import (
    ADD,
    GATE,
    PLAIN,
    QKV,
    HalfNormed,
    Product,
    RmsNormWeights,
    angles,
    constants,
    rotation,
    store_qkv,
    weight_row,
)
from kernels.float8_weight import BLOCKS, CHANNELS, NONE, SPAN, Float8Weight, as_numbers, parts_of
from kernels.language import TRITON_INSTALLED, jit, next_power_of_2, tl

if TRITON_INSTALLED:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_AHEAD = 256  # bytes of each of its rows of weights that a program asks to L2 before it waits


def launch(product: Product) -> HalfNormed | None:
    """Multiply 2 to 64 rows; returns what is left of the norm after them, if one was to be begun."""
    x, norm, begun, then, out = product.x, product.norm, product.begun, product.then, product.out
    T, E = x.shape
    F = product.weight.shape[0]
    if begun is not None:
        x = begun.scaled
    elif norm is not None:
        x = _normed(x, norm)
    codes, scales, _ = parts_of(product.weight)
    tile = _float8_tile if isinstance(product.weight, Float8Weight) else _rows_tile
    rows, depth, stages, split = tile(F, E, T, product.arrived is not None)
    tokens = max(16, next_power_of_2(T))
    partial = x.new_empty((F // rows, split, rows, tokens), dtype=torch.float32) if split > 1 else x
    left = None
    if then is not None:
        left = HalfNormed(torch.empty_like(out), x.new_empty((F // rows, T), dtype=torch.float32))
    before = (x, 0, 0.0) if begun is None or norm is None else (begun.squares, begun.squares.shape[0], norm.eps)
    after = (x, 0.0, x, x) if left is None or then is None else (then.weight, then.offset, left.scaled, left.squares)
    _rows_kernel[(F // rows, split)](
        x, codes, scales, product.bias, out, *rotation(product), partial,
        x if product.arrived is None else product.arrived, *before, *after, T, F=F, E=E, ROWS=rows, TOKENS=tokens,
        DEPTH=depth, STAGES=stages, SPLIT=split, BEGUN=next_power_of_2(before[1]) if begun is not None else 0,
        THEN=left is not None, AHEAD=min(E // split * codes.element_size(), _AHEAD) if x.is_cuda else 0,
        num_warps=8 if rows > 64 else 4, **constants(product),
    )  # fmt: skip
    return left


def _normed(x: Tensor, norm: RmsNormWeights) -> Tensor:
    """The norm as a kernel of its own: only the first layer of a step has it."""
    T, E = x.shape
    normed = torch.empty_like(x)
    block = next_power_of_2(E)
    _norm_kernel[(T,)](
        x, norm.weight, normed, norm.eps, norm.offset, E=E, BLOCK=block,
        num_warps=max(1, min(16, block // 256)), **dependent.launch(x),
    )  # fmt: skip
    return normed


def _rows_tile(F: int, E: int, T: int, may_split: bool) -> tuple[int, int, int, int]:
    """Rows of weights, columns a stage, stages, parts of the sum; for the tensor cores. H200, best of 640 measured.

    Tiles of 64 rows, which the widest instructions want and which read x least often, and work for every processor:
    both at once by splitting the sum of short weights. One program a processor then keeps much in flight; more parts
    than that cost more to add than they gain.
    """
    few, rows, split = T <= 16, 64, 1
    while may_split and F % 64 == 0 and split < 8 and F // 64 * split < 120 and E % (256 * split) == 0:
        split *= 2
    while split == 1 and rows > 16 and (F % rows or F // rows < 128):
        rows //= 2
    if rows < 64:
        depth, stages = 512 if rows == 16 and few else 256, 3 if rows == 16 or T > 32 else 4
    elif F // 64 * split < 144:
        depth, stages = (256, 4) if few else (128, 5)
    else:
        split *= 2 if split > 1 and few else 1
        depth, stages = 128, 3 if T > 32 or split > 2 else 4
    while E % (split * depth):
        depth //= 2
    return rows, depth, stages, split


def _float8_tile(F: int, E: int, T: int, may_split: bool) -> tuple[int, int, int, int]:
    """The same for weights of one byte. H200, best of 12 measured for each product of an 8B layer.

    Making numbers of them takes time between waits, so several programs share a processor. Beside its weights each
    reads x, for which half as many programs of twice the rows are better up to 16 tokens: 37 us instead of 43 for gate
    and up, 21 instead of 29 for down. For more they hold too much.
    """
    rows, wanted = (128, 192) if T <= 16 else (64, 256 if T <= 32 else 192)
    if F % rows or (F // rows * (8 if may_split else 1)) < 128:
        rows = 64
    split = 1
    while may_split and F % rows == 0 and split < 8 and F // rows * split < wanted and E % (256 * split) == 0:
        split *= 2
    while rows > 16 and (F % rows or (split == 1 and F // rows < 128)):
        rows //= 2
    depth = 128
    while E % (split * depth):
        depth //= 2
    return rows, depth, 6 if split > 1 and 16 < T <= 32 else 3 if T <= 32 else 4, split


@jit
def _l2_ahead(pointer, size):
    """Ask for `size` bytes (a multiple of 16) from each address to come to L2."""
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;", "=r,l,r", [pointer.to(tl.int64), size],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@jit
def _rows_kernel(
    x_ptr, weight_ptr, scale_ptr, bias_ptr, out_ptr, cos_ptr, sin_ptr, positions_ptr, k_cache_ptr, v_cache_ptr,
    slots_ptr, table_stride, stride_n, stride_b, stride_h, k_over, v_over, partial_ptr, arrived_ptr,
    begun_squares_ptr, begun_tiles, eps, norm_ptr, offset, scaled_ptr, squares_ptr, T,
    F: tl.constexpr, E: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, SPLIT: tl.constexpr, BEGUN: tl.constexpr, THEN: tl.constexpr, AHEAD: tl.constexpr,
    KIND: tl.constexpr, D: tl.constexpr, KV_HEADS: tl.constexpr, B: tl.constexpr, ACT: tl.constexpr,
    PDL: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """Up to 64 rows: acc [ROWS, TOKENS] = W x^T, the weights being the tall side that the tensor cores want."""
    if PDL:
        gdc_launch_dependents()
    n, token, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, TOKENS)[None, :], tl.arange(0, DEPTH)
    first = tl.program_id(1) * (E // SPLIT)
    place = weight_row(n, F, KIND, D)
    row = weight_ptr + place.to(tl.int64) * E + first
    if AHEAD > 0:
        _l2_ahead(row, AHEAD)
    scales = _scales(scale_ptr, place, E, SCALES)
    live = token < T
    pair = (tl.program_id(0) * (ROWS // 2) + tl.arange(0, ROWS // 2))[:, None]
    if KIND == QKV:
        position = tl.load(positions_ptr + token, mask=live, other=0)
        slot = tl.load(slots_ptr + token, mask=live, other=-1)
        cos, sin = angles(cos_ptr, sin_ptr, table_stride, position, pair + token * 0, F, D, KV_HEADS)
    if PDL:
        gdc_wait()
    acc = tl.zeros([ROWS, TOKENS], tl.float32)
    weights, inputs = row[:, None] + k[None, :], x_ptr + first + token * E + k[:, None]
    for at in tl.range(0, E // SPLIT, DEPTH, num_stages=STAGES):
        w = tl.load(weights + at)
        x = tl.load(inputs + at, mask=live, other=0.0)
        acc = _add_product(acc, w, x, scales, first + at, SCALES)
    last = True
    if SPLIT > 1:  # the last program to arrive has the sum; it adds the parts in their order
        tile = tl.program_id(0) * SPLIT
        at = tl.arange(0, ROWS)[:, None] * TOKENS + token
        tl.store(partial_ptr + (tile + tl.program_id(1)) * (ROWS * TOKENS) + at, acc)
        tl.debug_barrier()
        last = tl.atomic_add(arrived_ptr + tl.program_id(0), 1, sem="acq_rel") == SPLIT - 1
    if last:
        if SPLIT > 1:
            tl.store(arrived_ptr + tl.program_id(0), 0)
            acc = _sum_parts(partial_ptr + tile * (ROWS * TOKENS) + at, ROWS * TOKENS, SPLIT)
        acc = _times_inverse_rms(acc, begun_squares_ptr, begun_tiles, T, token, eps, E, BEGUN)
        acc = _plus_bias(acc, bias_ptr, n)
        if KIND == ADD:
            _store_sum(acc, token, n, live, out_ptr, norm_ptr, offset, scaled_ptr, squares_ptr, T, F, THEN)
        elif KIND == PLAIN:
            tl.store(out_ptr + token * F + n[:, None], acc.to(out_ptr.dtype.element_ty), mask=live)
        else:
            a, b = tl.split(tl.permute(tl.reshape(acc, [ROWS // 2, 2, TOKENS]), (0, 2, 1)))
            if KIND == GATE:
                tl.store(out_ptr + token * (F // 2) + pair, gated(a, b, ACT).to(out_ptr.dtype.element_ty), mask=live)
            else:
                store_qkv(
                    a, b, pair, token, live & (pair >= 0), cos, sin, slot, out_ptr, k_cache_ptr, v_cache_ptr, stride_n,
                    stride_b, stride_h, k_over, v_over, F, D, KV_HEADS, B,
                )  # fmt: skip


@jit
def _scales(scale_ptr, row, E: tl.constexpr, SCALES: tl.constexpr):
    """The scales of some rows, or where those of their first block lie."""
    scales = row  # of no use
    if SCALES == CHANNELS:
        scales = tl.load(scale_ptr + row)
    elif SCALES == BLOCKS:
        scales = scale_ptr + row // SPAN * tl.cdiv(E, SPAN)
    return scales


@jit
def _add_product(acc, w, x, scales, column, SCALES: tl.constexpr):
    """acc + W x^T of some columns, which lie in one block.

    Float8 is scaled here also where all columns share a scale: a sum that only these instructions write is waited for
    once, one that goes on after each of them.
    """
    if SCALES == NONE:
        acc = tl.dot(w, x, acc, input_precision="ieee")
    else:
        scale = tl.load(scales + column // SPAN) if SCALES == BLOCKS else scales
        acc += tl.dot(as_numbers(w, x.dtype), x, input_precision="ieee") * scale[:, None]
    return acc


@jit
def _times_inverse_rms(acc, squares_ptr, tiles, T, token, eps, E: tl.constexpr, BEGUN: tl.constexpr):
    """The half of a norm that was left to the product after it, if it was."""
    if BEGUN > 0:
        part = tl.arange(0, BEGUN)[:, None]
        squares = tl.load(squares_ptr + part * T + token, mask=(token < T) & (part < tiles), other=0.0)
        return acc * tl.rsqrt(tl.sum(squares, 0) / E + eps)[None, :]
    return acc


@jit
def _plus_bias(acc, bias_ptr, n):
    """acc + bias, if there is one."""
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + n).to(tl.float32)[:, None]
    return acc


@jit
def _store_sum(
    acc, token, n, live, out_ptr, norm_ptr, offset, scaled_ptr, squares_ptr, T, F: tl.constexpr, THEN: tl.constexpr
):  # fmt: skip
    """Add a tile to what `out` holds, and leave half of the norm after it."""
    to = token * F + n[:, None]
    total = (acc + tl.load(out_ptr + to, mask=live, other=0.0).to(tl.float32)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + to, total, mask=live)
    if THEN:
        total = total.to(tl.float32)
        scale = tl.load(norm_ptr + n).to(tl.float32)[:, None] + offset
        tl.store(scaled_ptr + to, (total * scale).to(scaled_ptr.dtype.element_ty), mask=live)
        squares = tl.sum(total * total, 0)[None, :]
        tl.store(squares_ptr + tl.program_id(0) * T + token, squares, mask=live)


@jit
def _sum_parts(pointer, stride: tl.constexpr, SPLIT: tl.constexpr):
    """Add what SPLIT programs wrote, in their order; it is read past the L1 cache."""
    total = tl.load(pointer, cache_modifier=".cg")
    for part in tl.static_range(1, SPLIT):
        total += tl.load(pointer + part * stride, cache_modifier=".cg")
    return total


@jit
def _norm_kernel(x_ptr, weight_ptr, out_ptr, eps, offset, E: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        gdc_launch_dependents()
    column = tl.arange(0, BLOCK)
    scale = tl.load(weight_ptr + column, mask=column < E, other=0.0).to(tl.float32) + offset
    if PDL:
        gdc_wait()
    at = tl.program_id(0) * E + column
    x = tl.load(x_ptr + at, mask=column < E, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / E + eps) * scale
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=column < E)
