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
    if weight.by_blocks:
        return _launch_blocks(rows, weight, bias)
    # Sums in the tensor cores' own precision, as other engines have them.
    return torch._scaled_mm(
        rows.codes, weight.codes.t(), rows.scales, weight.scales[None, :], bias=bias, out_dtype=rows.dtype,
        use_fast_accum=True,
    )  # fmt: skip


def _launch_blocks(rows: QuantizedRows, weight: Float8Weight, bias: Tensor | None) -> Tensor:
    """cuBLAS adds up each 128 inputs in float32; it wants the scales of 4 rows to lie at a multiple of 16 bytes."""
    T, codes, scales = rows.codes.shape[0], rows.codes, rows.scales
    if T % 4:
        codes = functional.pad(codes.view(torch.uint8), (0, 0, 0, -T % 4)).view(torch.float8_e4m3fn)
        scales = functional.pad(scales.t(), (0, -T % 4)).t()
    out = torch._scaled_mm(codes, weight.codes.t(), scales, weight.scales.t(), out_dtype=rows.dtype)[:T]
    return out if bias is None else out.add_(bias)
