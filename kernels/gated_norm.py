"""RMS norm over the last dimension and the SiLU of a gate: behind it (gated delta nets), or before it (Mamba 2)."""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor
from torch.nn import functional

from kernels import dispatch
from kernels.language import cdiv, jit_alike, next_power_of_2, tl
from kernels.native import record


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, gate_first: bool = False) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight * silu(gate) for `x` and `gate` [T, V, D], `weight` [D] or [V, D].

    With `gate_first` it is the norm of x * silu(gate). In x's dtype; float32 inside. `x` and `weight` are contiguous,
    `gate` in its last two dimensions.
    """
    if x.dim() != 3 or gate.shape != x.shape or weight.shape not in (x.shape[2:], x.shape[1:]):
        shapes = f"x {tuple(x.shape)}, gate {tuple(gate.shape)} and weight {tuple(weight.shape)}"
        raise ValueError(f"{shapes} must be [T, V, D] twice and [D] or [V, D]")
    if not x.is_contiguous() or not weight.is_contiguous() or gate.stride(2) != 1 or gate.stride(1) != gate.shape[2]:
        raise ValueError("x and weight must be contiguous, gate in its last two dimensions")
    form = dispatch.form(x)
    if form == "native" and x.dtype == gate.dtype == weight.dtype == torch.float32:
        return _native(x, gate, weight, eps, gate_first)
    if form != "triton":
        return reference(x, gate, weight, eps, gate_first=gate_first)
    out = torch.empty_like(x)
    _launch(x, gate, weight, eps, gate_first, out)
    return out


def reference(x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, gate_first: bool = False) -> Tensor:
    """Norm and gate in plain torch."""
    opened = functional.silu(gate.float())
    wide = x.float() * opened if gate_first else x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
    return (normed if gate_first else normed * opened).to(x.dtype)


def _native(x: Tensor, gate: Tensor, weight: Tensor, eps: float, gate_first: bool) -> Tensor:
    out = record.empty(tuple(x.shape))
    T, V, D = x.shape
    tensors = (x, gate, weight, out)
    numbers = (T * V, V, D, gate.stride(0), _between_heads(weight), int(gate_first))
    call = record.Record(record.GATED_NORM, numbers, tuple(map(record.pointer, tensors)), (eps,))
    record.call([call], tensors)
    return out


def _between_heads(weight: Tensor) -> int:
    """Return how far apart the weights of neighbours are."""
    return weight.stride(0) if weight.dim() == 2 else 0


def _launch(x: Tensor, gate: Tensor, weight: Tensor, eps: float, gate_first: bool, out: Tensor) -> None:
    T, V, D = x.shape
    if T == 0:
        return
    block = next_power_of_2(D)
    rows = max(2048 // block, 1)  # 16 numbers a thread at 4 warps, of x and of the gate
    _gated_norm_kernel[(cdiv(T * V, rows),)](
        x, gate, weight, out, T * V, gate.stride(0), eps, V=V, D=D, APART=_between_heads(weight), FIRST=gate_first,
        BLOCK=block, ROWS=rows, num_warps=4,
    )  # fmt: skip


@jit_alike("rows")
def _gated_norm_kernel(
    x_ptr, gate_ptr, weight_ptr, out_ptr, rows, stride, eps, V: tl.constexpr, D: tl.constexpr, APART: tl.constexpr,
    FIRST: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    live = (row < rows)[:, None] & (column < D)[None, :]
    dense = row[:, None] * D + column[None, :]
    x = tl.load(x_ptr + dense, mask=live, other=0.0).to(tl.float32)
    place = (row // V * stride + row % V * D)[:, None] + column[None, :]
    gate = tl.load(gate_ptr + place, mask=live, other=0.0).to(tl.float32)
    opened = gate / (1 + tl.exp(-gate))
    weight = tl.load(weight_ptr + (row % V * APART)[:, None] + column[None, :], mask=live, other=0.0).to(tl.float32)
    if FIRST:
        x *= opened
    inverse = tl.rsqrt(tl.sum(x * x, 1) / D + eps)
    made = x * inverse[:, None] * weight
    if not FIRST:
        made *= opened
    tl.store(out_ptr + dense, made.to(out_ptr.dtype.element_ty), mask=live)
