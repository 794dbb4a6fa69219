"""RMS norm over the last dimension, times the SiLU of a gate: what a gated delta net does with each head's output."""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor
from torch.nn import functional

from kernels import dispatch
from kernels.language import cdiv, jit_alike, next_power_of_2, tl
from kernels.native import record


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight * silu(gate) for `x` and `gate` [T, V, D], `weight` [D].

    In x's dtype; float32 inside. `x` is contiguous, `gate` in its last two dimensions.
    """
    if x.dim() != 3 or gate.shape != x.shape or weight.shape != x.shape[-1:]:
        shapes = f"x {tuple(x.shape)}, gate {tuple(gate.shape)} and weight {tuple(weight.shape)}"
        raise ValueError(f"{shapes} must be [T, V, D] twice and [D]")
    if not x.is_contiguous() or gate.stride(2) != 1 or gate.stride(1) != gate.shape[2]:
        raise ValueError("x must be contiguous, gate in its last two dimensions")
    form = dispatch.form(x)
    if form == "native" and x.dtype == gate.dtype == weight.dtype == torch.float32:
        return _native(x, gate, weight, eps)
    if form != "triton":
        return reference(x, gate, weight, eps)
    out = torch.empty_like(x)
    _launch(x, gate, weight, eps, out)
    return out


def reference(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm and gate in plain torch."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
    return (normed * functional.silu(gate.float())).to(x.dtype)


def _native(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    out = record.empty(tuple(x.shape))
    T, V, D = x.shape
    tensors = (x, gate, weight, out)
    call = record.Record(record.GATED_NORM, (T * V, V, D, gate.stride(0)), tuple(map(record.pointer, tensors)), (eps,))
    record.call([call], tensors)
    return out


def _launch(x: Tensor, gate: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    T, V, D = x.shape
    if T == 0:
        return
    block = next_power_of_2(D)
    rows = max(2048 // block, 1)  # 16 numbers a thread at 4 warps, of x and of the gate
    _gated_norm_kernel[(cdiv(T * V, rows),)](
        x, gate, weight, out, T * V, gate.stride(0), eps, V=V, D=D, BLOCK=block, ROWS=rows, num_warps=4
    )


@jit_alike("rows")
def _gated_norm_kernel(
    x_ptr, gate_ptr, weight_ptr, out_ptr, rows, stride, eps, V: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    live = (row < rows)[:, None] & (column < D)[None, :]
    dense = row[:, None] * D + column[None, :]
    x = tl.load(x_ptr + dense, mask=live, other=0.0).to(tl.float32)
    place = (row // V * stride + row % V * D)[:, None] + column[None, :]
    gate = tl.load(gate_ptr + place, mask=live, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < D, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, 1) / D + eps)
    made = x * inverse[:, None] * weight[None, :] * (gate / (1 + tl.exp(-gate)))
    tl.store(out_ptr + dense, made.to(out_ptr.dtype.element_ty), mask=live)
