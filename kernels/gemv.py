"""Linear layer for one or a few rows, where memory alone decides: a product by rows of the weight.

cuBLAS reaches 72-91 % of the bandwidth at one row (H200: 15.3, 13.2, 55.5, 31.9 us for the four products of an 8B
layer); a program that reads whole rows of the weight and reduces them takes 13.3, 9.6, 52.7, 27.8 us. More rows, and
every product on a CPU, stay with torch.
"""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor
from torch.nn import functional

from kernels import dispatch, fixed_linear
from kernels.language import cdiv, jit, next_power_of_2, tl

_MAX_ROWS = 1


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x` [T, E] times `weight` [F, E] transposed, plus `bias` [F]: [T, F] in x's dtype."""
    if x.dim() != 2 or weight.dim() != 2 or weight.shape[1] != x.shape[1]:
        raise ValueError(f"weight has shape {tuple(weight.shape)}; x {tuple(x.shape)} needs [F, {x.shape[-1]}]")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(bias.shape)}; it must be ({weight.shape[0]},)")
    if dispatch.fixed() and dispatch.form(x) == "triton":
        return fixed_linear.fixed_linear(x, weight, bias)
    if dispatch.form(x) == "triton" and 0 < x.shape[0] <= _MAX_ROWS and weight.is_contiguous():
        return _launch(x, weight, bias)
    return reference(x, weight, bias)


def reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply with torch: cuBLAS on a GPU, oneDNN on a CPU."""
    return functional.linear(x, weight, bias)


def _launch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    T, E = x.shape
    F = weight.shape[0]
    out = torch.empty((T, F), dtype=x.dtype, device=x.device)
    block = min(next_power_of_2(E), 4096)
    # 8 KB of each weight row per load, 64 bytes a thread; few rows a program, so that even a small F fills the card.
    rows = 4 if F >= 8192 else 2
    _gemv_kernel[(cdiv(F, rows), T)](
        x, weight, out if bias is None else bias, out, F, E, x.stride(0),
        BLOCK=block, ROWS=rows, BIAS=bias is not None, num_warps=max(1, min(8, block // 512)),
    )  # fmt: skip
    return out


@jit
def _gemv_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, F, E, x_stride, BLOCK: tl.constexpr, ROWS: tl.constexpr, BIAS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.program_id(1).to(tl.int64)
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
    start = row.to(tl.int64)[:, None] * E
    for k in range(0, E, BLOCK):
        column = k + tl.arange(0, BLOCK)
        inside = column < E
        x = tl.load(x_ptr + token * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        live = (row < F)[:, None] & inside[None, :]
        acc += tl.load(weight_ptr + start + column[None, :], mask=live, other=0.0).to(tl.float32) * x[None, :]
    y = tl.sum(acc, 1)
    if BIAS:
        y += tl.load(bias_ptr + row, mask=row < F, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * F + row, y.to(out_ptr.dtype.element_ty), mask=row < F)
