"""Linear layer on float8 weights: which of its kernels a product takes.

Up to 16 rows memory decides: the weights are read at half the bytes, and activations are not rounded. For more, both
sides go to the tensor cores as float8. In a fixed order activations are never rounded, so that few rows and many agree.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels import dispatch, few_rows, fixed_linear, scaled_linear
from kernels.float8_weight import Float8Weight
from kernels.quantize_rows import QuantizedRows

# A step of 8B on an H200, ms, without rounding and with it: 3.20 and 3.59 at 16 rows, 3.90 and 3.62 at 32.
UNROUNDED_ROWS = 16


def float8_linear(x: Tensor | QuantizedRows, weight: Float8Weight, bias: Tensor | None = None) -> Tensor:
    """Return `x` [T, E] times `weight` [F, E] transposed, plus `bias` [F]: [T, F] in x's dtype."""
    if isinstance(x, QuantizedRows):
        return scaled_linear.scaled_linear(x, weight, bias)
    if x.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x has shape {tuple(x.shape)}; the weight {tuple(weight.shape)} needs [T, {weight.shape[1]}]")
    if dispatch.form(x) != "triton":
        return reference(x, weight, bias)
    if dispatch.fixed():
        return fixed_linear.fixed_linear(x, weight, bias)
    if rounds(x):
        return scaled_linear.scaled_linear(x, weight, bias)
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    if x.shape[0]:
        few_rows.linear_into(x.contiguous(), weight, out)
    return out if bias is None else out.add_(bias)


def rounds(x: Tensor) -> bool:
    """Tell whether the product of these rows rounds them to float8."""
    return dispatch.form(x) == "triton" and not dispatch.fixed() and x.shape[0] > UNROUNDED_ROWS


def reference(x: Tensor, weight: Float8Weight, bias: Tensor | None = None) -> Tensor:
    """Make the numbers and multiply with torch."""
    return functional.linear(x, weight.reference(x.dtype), bias)
