"""The product of one row: whole rows of weights, read by a loop that keeps one tile under way (see `few_rows`)."""

# mypy: disable-error-code="no-untyped-def"

from kernels import dispatch
from kernels.activation import gated
from kernels.few_rows_product import (
    ADD,
    GATE,
    PLAIN,
    QKV,
    Product,
    angles,
    constants,
    rotation,
    store_qkv,
    weight_row,
)
from kernels.float8_weight import BLOCKS, CHANNELS, NONE, SPAN, Float8Weight, four_numbers, parts_of
from kernels.language import TRITON_INSTALLED, jit, next_power_of_2, tl

if TRITON_INSTALLED:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def launch(product: Product) -> None:
    """Multiply one row."""
    x, norm = product.x, product.norm
    F, E = product.weight.shape
    codes, scales, _ = parts_of(product.weight)
    tile = _float8_tile if isinstance(product.weight, Float8Weight) else _row_tile
    rows, warps, per_processor = tile(F, E, product.kind)
    tiles = F // rows
    processors = dispatch.processors(x, elsewhere=8)
    grid = min(tiles, per_processor * processors) if per_processor else tiles
    _row_kernel[(grid,)](
        x, norm.weight if norm is not None else x, codes, scales, product.bias, product.out, *rotation(product),
        norm.eps if norm is not None else 0.0, norm.offset if norm is not None else 0.0, tiles,
        F=F, E=E, BLOCK=next_power_of_2(E), ROWS=rows, NORM=norm is not None, num_warps=warps, **constants(product),
    )  # fmt: skip


def _row_tile(F: int, E: int, kind: int) -> tuple[int, int, int]:
    """Rows of weights a tile, warps, CTAs a processor (0: one a tile), for one row. H100, measured per product.

    About 32 KB a tile; gates in small tiles that hardware deals out, the others in loops that fetch one tile ahead.
    """
    block = next_power_of_2(E)
    if kind == GATE.value and block >= 4096:
        return 2, 4, 0
    if block > 8192:
        return 2, 16, 1
    rows = max(2, 16384 // block)
    while rows > 2 and (F % rows or F // rows < 128):
        rows //= 2
    return rows, max(4, min(8, rows * block // 2048)), 2


def _float8_tile(F: int, E: int, _kind: int) -> tuple[int, int, int]:
    """The same for weights of one byte. H200, best of 6 measured for each product of an 8B layer.

    Half the bytes a tile and twice the programs: while one makes numbers of its tile, others fetch.
    """
    block = next_power_of_2(E)
    if block > 8192:
        return 4 if F % 4 == 0 else 2, 16, 1
    rows = max(2, 16384 // block)
    while rows > 2 and (F % rows or F // rows < 128):
        rows //= 2
    return rows, 4, 4


@jit
def _row_kernel(
    x_ptr, norm_ptr, weight_ptr, scale_ptr, bias_ptr, out_ptr, cos_ptr, sin_ptr, positions_ptr, k_cache_ptr,
    v_cache_ptr, slots_ptr, table_stride, stride_n, stride_b, stride_h, k_over, v_over, eps, offset, tiles,
    F: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, NORM: tl.constexpr, KIND: tl.constexpr,
    D: tl.constexpr, KV_HEADS: tl.constexpr, B: tl.constexpr, ACT: tl.constexpr, PDL: tl.constexpr,
    SCALES: tl.constexpr,
):  # fmt: skip
    """One row: x stays in registers, one tile of whole weight rows is always in flight."""
    if PDL:
        gdc_launch_dependents()
    program, programs = tl.program_id(0), tl.num_programs(0)
    n, column = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    if SCALES != NONE:  # words of four codes
        weight_ptr = weight_ptr.to(tl.pointer_type(tl.int32))
    EACH: tl.constexpr = 1 if SCALES == NONE else 4
    place = tl.arange(0, BLOCK // EACH)
    inside = (place < E // EACH)[None, :]
    row = weight_row(program * ROWS + n, F, KIND, D)
    weights = tl.load(weight_ptr + row.to(tl.int64)[:, None] * (E // EACH) + place[None, :], mask=inside, other=0)
    scales = _scales(scale_ptr, row, program * ROWS, F, E, BLOCK, KIND, D, SCALES)
    if NORM:
        scale = tl.load(norm_ptr + column, mask=column < E, other=0.0).to(tl.float32) + offset
    if KIND == QKV:  # these were written before the layers began
        position, slot = tl.load(positions_ptr), tl.load(slots_ptr)
    if PDL:
        gdc_wait()
    x = tl.load(x_ptr + column, mask=column < E, other=0.0).to(tl.float32)
    rstd = 1.0
    if NORM:
        rstd = tl.rsqrt(tl.sum(x * x, 0) / E + eps)
        x = tl.where(column < E, x * scale, 0.0)
    for tile in range(program, tiles, programs):
        following = tile + programs
        row = weight_row(following * ROWS + n, F, KIND, D)
        ahead = tl.load(
            weight_ptr + row.to(tl.int64)[:, None] * (E // EACH) + place[None, :],
            mask=inside & (following < tiles), other=0,
        )  # fmt: skip
        y = _sums(weights, scales, x, SCALES) * rstd
        scales = _scales(scale_ptr, tl.minimum(row, F - 1), following * ROWS, F, E, BLOCK, KIND, D, SCALES)
        if bias_ptr is not None:
            y += tl.load(bias_ptr + tile * ROWS + n).to(tl.float32)
        if KIND == ADD:
            to = out_ptr + tile * ROWS + n
            tl.store(to, (tl.load(to).to(tl.float32) + y).to(out_ptr.dtype.element_ty))
        elif KIND == PLAIN:
            tl.store(out_ptr + tile * ROWS + n, y.to(out_ptr.dtype.element_ty))
        else:
            pair = tile * (ROWS // 2) + tl.arange(0, ROWS // 2)
            a, b = tl.split(tl.reshape(y, [ROWS // 2, 2]))
            if KIND == GATE:
                tl.store(out_ptr + pair, gated(a, b, ACT).to(out_ptr.dtype.element_ty))
            else:
                cos, sin = angles(cos_ptr, sin_ptr, table_stride, position, pair, F, D, KV_HEADS)
                store_qkv(
                    a, b, pair, 0, pair >= 0, cos, sin, slot, out_ptr, k_cache_ptr, v_cache_ptr, stride_n, stride_b,
                    stride_h, k_over, v_over, F, D, KV_HEADS, B,
                )  # fmt: skip
        weights = ahead


@jit
def _scales(
    scale_ptr, row, first, F: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr, D: tl.constexpr,
    SCALES: tl.constexpr,
):  # fmt: skip
    """Scales of the rows of a tile [ROWS]; of blocks, those of each 16 columns of its first two [2, BLOCK / 16].

    A tile's other pairs of rows lie in the same two blocks.
    """
    scales = row  # of no use
    if SCALES == CHANNELS:
        scales = tl.load(scale_ptr + row)
    elif SCALES == BLOCKS:
        pair = weight_row(tl.minimum(first, F - 2) + tl.arange(0, 2), F, KIND, D)
        block = tl.arange(0, BLOCK // 16) * 16 // SPAN
        inside = (block < tl.cdiv(E, SPAN))[None, :]
        place = (pair // SPAN * tl.cdiv(E, SPAN))[:, None] + block[None, :]
        scales = tl.load(scale_ptr + place, mask=inside, other=0.0)
    return scales


@jit
def _sums(weights, scales, x, SCALES: tl.constexpr):
    """The product of each row with x [BLOCK]; 16 columns are added up before a block's scale is multiplied with."""
    if SCALES == NONE:
        sums = tl.sum(weights.to(tl.float32) * x[None, :], 1)
    else:
        WORDS: tl.constexpr = weights.shape[1]
        even, odd = tl.split(tl.reshape(x, [WORDS, 2, 2]))
        x0, x2 = tl.split(even)
        x1, x3 = tl.split(odd)
        w0, w1, w2, w3 = four_numbers(weights)
        sums = w0 * x0[None, :] + w1 * x1[None, :] + w2 * x2[None, :] + w3 * x3[None, :]
        if SCALES == CHANNELS:
            sums = tl.sum(sums, 1) * scales
        else:
            parts = tl.sum(tl.reshape(sums, [weights.shape[0] // 2, 2, WORDS // 4, 4]), 3)
            sums = tl.reshape(tl.sum(parts * scales[None, :, :], 2), [weights.shape[0]])
    return sums
