"""The product of one row: whole rows of weights, read by a loop that keeps one tile under way (see `few_rows`)."""

# mypy: disable-error-code="no-untyped-def"

from kernels import dispatch
from kernels.few_rows_product import (
    ADD,
    GATE,
    PLAIN,
    QKV,
    Product,
    angles,
    constants,
    gated,
    rotation,
    store_qkv,
    weight_row,
)
from kernels.language import TRITON_INSTALLED, jit, next_power_of_2, tl

if TRITON_INSTALLED:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def launch(product: Product) -> None:
    """Multiply one row."""
    x, norm = product.x, product.norm
    F, E = product.weight.shape
    rows, warps, per_processor = _row_tile(F, E, product.kind)
    tiles = F // rows
    processors = dispatch.processors(x, elsewhere=8)
    grid = min(tiles, per_processor * processors) if per_processor else tiles
    _row_kernel[(grid,)](
        x, norm.weight if norm is not None else x, product.weight, product.out, *rotation(product),
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


@jit
def _row_kernel(
    x_ptr, norm_ptr, weight_ptr, out_ptr, cos_ptr, sin_ptr, positions_ptr, k_cache_ptr, v_cache_ptr, slots_ptr,
    table_stride, stride_n, stride_b, stride_h, eps, offset, tiles,
    F: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, NORM: tl.constexpr, KIND: tl.constexpr,
    D: tl.constexpr, KV_HEADS: tl.constexpr, B: tl.constexpr, ACT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row: x stays in registers, one tile of whole weight rows is always in flight."""
    if PDL:
        gdc_launch_dependents()
    program, programs = tl.program_id(0), tl.num_programs(0)
    n, column = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (column < E)[None, :]
    row = weight_row(program * ROWS + n, F, KIND, D)
    weights = tl.load(weight_ptr + row.to(tl.int64)[:, None] * E + column[None, :], mask=inside, other=0.0)
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
            weight_ptr + row.to(tl.int64)[:, None] * E + column[None, :], mask=inside & (following < tiles), other=0.0
        )
        y = tl.sum(weights.to(tl.float32) * x[None, :], 1) * rstd
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
                    stride_h, F, D, KV_HEADS, B,
                )  # fmt: skip
        weights = ahead
