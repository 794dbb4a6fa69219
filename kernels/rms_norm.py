"""RMS norm over the last dimension, alone and with the residual addition that comes before it in a layer.

y = x / sqrt(mean(x^2) + eps) * (offset + weight), computed in float32. `offset` is 1 for Gemma, whose checkpoints hold
w - 1. The norm of queries and keys is the same op over [T, H, D].
"""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels import dependent, dispatch
from kernels.language import TRITON_INSTALLED, cdiv, jit_alike, next_power_of_2, tl
from kernels.native import record

if TRITON_INSTALLED:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0) -> Tensor:
    """Return the RMS norm of `x` [..., E] with `weight` [E], in x's dtype.

    Leading dimensions may be any number; two may have any strides (heads cut out of a fused row are read in place).
    """
    _check(x, weight)
    if dispatch.form(x) == "triton":
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        _launch(x, None, weight, out, eps, offset)
        return out
    if dispatch.form(x) == "native" and x.dim() <= 3 and _plain(x, weight):
        return _native(x, None, weight, eps, offset)
    return reference(x, weight, eps, offset=offset)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0) -> Tensor:
    """Add `x` [T, E] to `residual` [T, E] in place and return the RMS norm of the sum, in x's dtype.

    The sum is rounded to the residual's dtype before it is normed, so that both forms see the same number.
    """
    _check(x, weight)
    if residual.shape != x.shape:
        raise ValueError(f"residual has shape {tuple(residual.shape)}, x has {tuple(x.shape)}; they must be equal")
    if dispatch.form(x) == "triton":
        if not residual.is_contiguous():
            raise ValueError("residual must be contiguous")
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        _launch(x, residual, weight, out, eps, offset)
        return out
    if dispatch.form(x) == "native" and _plain(x, residual, weight) and x.is_contiguous() and residual.is_contiguous():
        return _native(x, residual, weight, eps, offset)
    return reference_add(x, residual, weight, eps, offset=offset)


def reference(x: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0) -> Tensor:
    """Norm in plain torch."""
    wide = x.float()
    scale = weight.float() + offset if offset else weight.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * scale).to(x.dtype)


def reference_add(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0) -> Tensor:
    """Add and norm in plain torch."""
    residual.add_(x)
    return reference(residual, weight, eps, offset=offset).to(x.dtype)


def _check(x: Tensor, weight: Tensor) -> None:
    if x.dim() < 1 or weight.shape != x.shape[-1:]:
        raise ValueError(f"weight has shape {tuple(weight.shape)}; x {tuple(x.shape)} needs ({x.shape[-1]},)")
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        raise ValueError("x must be contiguous in its last dimension")


def _plain(*tensors: Tensor) -> bool:
    return all(tensor.dtype == torch.float32 for tensor in tensors)


def _native(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, offset: float) -> Tensor:
    out = record.empty(tuple(x.shape))
    inner = x.shape[-2] if x.dim() > 1 else 1
    strides = (
        x.stride(0) if x.dim() > 2 else inner * x.stride(-2) if x.dim() > 1 else 0,
        x.stride(-2) if x.dim() > 1 else 0,
    )
    rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
    pointers = (x.data_ptr(), record.pointer(residual), weight.data_ptr(), out.data_ptr())
    call = record.Record(record.RMS_NORM, (rows, x.shape[-1], max(inner, 1), *strides), pointers, (eps, offset))
    record.call([call], (x, residual, weight, out))
    return out


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor, eps: float, offset: float) -> None:
    E = x.shape[-1]
    rows = x.numel() // E if E else 0
    if rows == 0:
        return
    # Rows are addressed as (outer, inner): enough for [T, E] and for heads cut out of a fused row [T, H, D].
    inner = x.shape[-2] if x.dim() > 1 else 1
    outer_view = x if x.dim() <= 3 else x.reshape(-1, inner, E)
    stride_inner = outer_view.stride(-2) if x.dim() > 1 else 0
    stride_outer = outer_view.stride(-3) if outer_view.dim() > 2 else inner * stride_inner
    block = next_power_of_2(E)
    # About 4,096 elements a program: 32 in flight per thread at 4 warps; short rows (head norms) share a program.
    # Also where there are fewer: the number of rows must not decide in which order a row is summed.
    rows_per_program = max(4096 // block, 1)
    warps = min(max(block * rows_per_program // 1024, 1), 16)
    _rms_norm_kernel[(cdiv(rows, rows_per_program),)](
        outer_view, residual if residual is not None else outer_view, weight, out, rows, inner,
        stride_outer, stride_inner, eps, offset,
        E=E, BLOCK=block, ROWS=rows_per_program, ADD=residual is not None, num_warps=warps,
        **dependent.launch(x),
    )  # fmt: skip


@jit_alike("rows", "inner")
def _rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, rows, inner, stride_outer, stride_inner, eps, offset,
    E: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    scale = tl.load(weight_ptr + column, mask=column < E, other=0.0).to(tl.float32) + offset
    if PDL:
        gdc_wait()
    live = (row < rows)[:, None] & (column < E)[None, :]
    start = (row // inner) * stride_outer + (row % inner) * stride_inner
    x = tl.load(x_ptr + start[:, None] + column[None, :], mask=live, other=0.0).to(tl.float32)
    dense = row[:, None] * E + column[None, :]
    if ADD:
        total = tl.load(residual_ptr + dense, mask=live, other=0.0).to(tl.float32) + x
        rounded = total.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + dense, rounded, mask=live)
        x = rounded.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, 1) / E + eps)
    tl.store(out_ptr + dense, (x * inverse[:, None] * scale[None, :]).to(out_ptr.dtype.element_ty), mask=live)
