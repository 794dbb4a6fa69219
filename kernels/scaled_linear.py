"""Linear layer on float8 weights with activations rounded to float8 too: what a Hopper card multiplies twice as fast.

For many rows, where the tensor cores decide. Each row has a scale of its own (`quantize_rows`), so a row's numbers do
not depend on what else is in the batch, but the order of the sums may.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels import dispatch
from kernels.float8_weight import Float8Weight
from kernels.language import cdiv, jit, tl
from kernels.quantize_rows import QuantizedRows, quantize_rows


def scaled_linear(x: Tensor | QuantizedRows, weight: Float8Weight, bias: Tensor | None = None) -> Tensor:
    """Return `x` [T, E] times `weight` [F, E] transposed, plus `bias` [F]: [T, F] in x's dtype.

    `x` may come quantized, by blocks if the weight is.
    """
    rows = x if isinstance(x, QuantizedRows) else quantize_rows(x, by_blocks=weight.by_blocks)
    if rows.codes.shape[1] != weight.shape[1]:
        raise ValueError(f"x has shape {tuple(rows.codes.shape)}; the weight needs [T, {weight.shape[1]}]")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(bias.shape)}; it must be ({weight.shape[0]},)")
    if dispatch.form(rows.codes) == "triton" and rows.codes.is_cuda:
        return _launch(rows, weight, bias)
    return reference(rows, weight, bias)


def suits(weight: Float8Weight, capability: tuple[int, int]) -> bool:
    """Tell whether a card multiplies a weight in this way: scales by blocks are for Hopper alone."""
    F, E = weight.shape
    if weight.by_blocks:
        return capability == (9, 0) and F % 128 == 0 and E % 512 == 0
    return capability >= (9, 0) and F % 16 == 0 and E % 16 == 0


def reference(rows: QuantizedRows, weight: Float8Weight, bias: Tensor | None) -> Tensor:
    """Multiply the rounded numbers with torch."""
    wide = None if bias is None else bias.float()
    return functional.linear(rows.reference(), weight.reference(torch.float32), wide).to(rows.dtype)


def _launch(rows: QuantizedRows, weight: Float8Weight, bias: Tensor | None) -> Tensor:
    (T, _), F = rows.codes.shape, weight.shape[0]
    if weight.by_blocks:
        return _launch_blocks(rows, weight, bias)
    # cuBLAS has no way to split the sum of a product that it scales by rows. Where tiles of 128 x 128 do not fill the
    # card it is therefore twice as fast without: H200, us, 4,096 -> 6,144, 4,096 -> 4,096 and 14,336 -> 4,096, with
    # and without: 14.3 / 9.7, 15.1 / 8.3, 37.0 / 21.0 at 128 rows, 14.5 / 11.9, 13.9 / 9.6, 36.9 / 26.1 at 256.
    small = cdiv(T, 128) * cdiv(F, 128) < dispatch.processors(rows.codes, elsewhere=8)
    if small and rows.dtype == torch.bfloat16:  # sums of codes are beyond float16
        return _launch_apart(rows, weight, bias)
    # Sums in the tensor cores' own precision, as other engines have them.
    return torch._scaled_mm(
        rows.codes, weight.codes.t(), rows.scales, weight.scales[None, :], bias=bias, out_dtype=rows.dtype,
        use_fast_accum=True,
    )  # fmt: skip


def _launch_apart(rows: QuantizedRows, weight: Float8Weight, bias: Tensor | None) -> Tensor:
    """Multiply the codes, then scale: rounding to 16 bits before that is as large as after it."""
    one, (T, _), F = weight.one, rows.codes.shape, weight.shape[0]
    out = torch._scaled_mm(rows.codes, weight.codes.t(), one, one, out_dtype=rows.dtype, use_fast_accum=True)
    _scale_kernel[(T, cdiv(F, 1024))](
        out, rows.scales, weight.scales, out if bias is None else bias, F, BIAS=bias is not None, BLOCK=1024,
        num_warps=4,
    )  # fmt: skip
    return out


@jit
def _scale_kernel(out_ptr, rows_ptr, outputs_ptr, bias_ptr, F, BIAS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < F
    place = out_ptr + row * F + column
    scale = tl.load(rows_ptr + row) * tl.load(outputs_ptr + column, mask=live, other=0.0)
    y = tl.load(place, mask=live, other=0.0).to(tl.float32) * scale
    if BIAS:
        y += tl.load(bias_ptr + column, mask=live, other=0.0).to(tl.float32)
    tl.store(place, y.to(out_ptr.dtype.element_ty), mask=live)


def _launch_blocks(rows: QuantizedRows, weight: Float8Weight, bias: Tensor | None) -> Tensor:
    """cuBLAS adds up each 128 inputs in float32; it wants the scales of 4 rows to lie at a multiple of 16 bytes."""
    T, codes, scales = rows.codes.shape[0], rows.codes, rows.scales
    if T % 4:
        codes = functional.pad(codes.view(torch.uint8), (0, 0, 0, -T % 4)).view(torch.float8_e4m3fn)
        scales = functional.pad(scales.t(), (0, -T % 4)).t()
    out = torch._scaled_mm(codes, weight.codes.t(), scales, weight.scales.t(), out_dtype=rows.dtype)[:T]
    return out if bias is None else out.add_(bias)
