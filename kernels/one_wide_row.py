"""The product of a long row with float8 weights: a loop over columns with two pieces under way (see `few_rows`).

Rows of more than 8,192 columns held whole, as `one_row` holds them, fill the registers of a processor with one program,
which then waits and computes by turns.
"""

# mypy: disable-error-code="no-untyped-def"

from kernels import dependent
from kernels.few_rows_product import ADD, PLAIN, Product
from kernels.float8_weight import BLOCKS, CHANNELS, SPAN, Float8Weight, four_numbers, parts_of
from kernels.language import TRITON_INSTALLED, jit, tl

if TRITON_INSTALLED:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_LONG = 8192
_ROWS, _CHUNK, _WARPS = 8, 1024, 4  # 512 programs for 4,096 outputs, of which each processor holds 4


def takes(product: Product) -> bool:
    """Tell whether this kernel computes a product."""
    F, E = product.weight.shape
    plain = product.kind in (ADD.value, PLAIN.value) and product.norm is None and product.bias is None
    return plain and isinstance(product.weight, Float8Weight) and E > _LONG and F % _ROWS == 0


def launch(product: Product) -> None:
    """Multiply one row."""
    F, E = product.weight.shape
    codes, scales, form = parts_of(product.weight)
    _wide_row_kernel[(F // _ROWS,)](
        product.x, codes, scales, product.out, E=E, CHUNK=_CHUNK, ROWS=_ROWS, ADDED=product.kind == ADD.value,
        SCALES=form, num_warps=_WARPS, **dependent.launch(product.x),
    )  # fmt: skip


@jit
def _wide_row_kernel(
    x_ptr, weight_ptr, scale_ptr, out_ptr, E: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    ADDED: tl.constexpr, SCALES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
    row, word = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, CHUNK // 4)
    words = weight_ptr.to(tl.pointer_type(tl.int32)) + row.to(tl.int64)[:, None] * (E // 4) + word[None, :]
    weights = tl.load(words)
    ahead = tl.load(words + CHUNK // 4, mask=(word < (E - CHUNK) // 4)[None, :], other=0)
    if SCALES == CHANNELS:
        scale = tl.load(scale_ptr + row)
    if PDL:
        gdc_wait()
    acc = tl.zeros([ROWS, CHUNK // 4], tl.float32)
    for at in range(0, E, CHUNK):
        left = E - at
        further = tl.load(words + (at + 2 * CHUNK) // 4, mask=(word < (left - 2 * CHUNK) // 4)[None, :], other=0)
        x0, x1, x2, x3 = _four_inputs(x_ptr + at, word, word < left // 4)
        if SCALES == BLOCKS:  # all rows of a tile lie in one block
            first = scale_ptr + tl.program_id(0) * ROWS // SPAN * tl.cdiv(E, SPAN) + at // SPAN
            scale = tl.load(first + word * 4 // SPAN, mask=word < left // 4, other=0.0)
            x0, x1, x2, x3 = x0 * scale, x1 * scale, x2 * scale, x3 * scale
        w0, w1, w2, w3 = four_numbers(weights)
        acc = w0 * x0[None, :] + acc
        acc = w1 * x1[None, :] + acc
        acc = w2 * x2[None, :] + acc
        acc = w3 * x3[None, :] + acc
        weights, ahead = ahead, further
    y = tl.sum(acc, 1)
    if SCALES == CHANNELS:
        y *= scale
    if ADDED:
        y += tl.load(out_ptr + row).to(tl.float32)
    tl.store(out_ptr + row, y.to(out_ptr.dtype.element_ty))


@jit
def _four_inputs(x_ptr, word, inside):
    """The four inputs of each word of codes, float32; those of bf16 come in one load and are cut out of it."""
    if x_ptr.dtype.element_ty == tl.bfloat16:
        four = tl.load(x_ptr.to(tl.pointer_type(tl.int64)) + word, mask=inside, other=0)
        low, high = four.to(tl.int32), (four >> 32).to(tl.int32)
        x0, x1 = (low << 16).to(tl.float32, bitcast=True), (low & -65536).to(tl.float32, bitcast=True)
        x2, x3 = (high << 16).to(tl.float32, bitcast=True), (high & -65536).to(tl.float32, bitcast=True)
    else:
        x0 = tl.load(x_ptr + word * 4, mask=inside, other=0.0).to(tl.float32)
        x1 = tl.load(x_ptr + word * 4 + 1, mask=inside, other=0.0).to(tl.float32)
        x2 = tl.load(x_ptr + word * 4 + 2, mask=inside, other=0.0).to(tl.float32)
        x3 = tl.load(x_ptr + word * 4 + 3, mask=inside, other=0.0).to(tl.float32)
    return x0, x1, x2, x3
