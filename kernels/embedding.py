"""Rows of the embedding table for token ids, optionally scaled (Gemma multiplies by sqrt(E))."""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor
from torch.nn import functional

from kernels import dependent, dispatch
from kernels.language import TRITON_INSTALLED, cdiv, jit, next_power_of_2, tl
from kernels.native import record
from kernels.native.packed_weight import PackedWeight

if TRITON_INSTALLED:
    from triton.language.extra.cuda import gdc_launch_dependents


def embedding(ids: Tensor, weight: Tensor | PackedWeight, *, scale: float | None = None) -> Tensor:
    """Return `weight`[ids] [T, E] for `ids` [T] (int32 or int64) and `weight` [V, E], times `scale`.

    An id outside 0..V-1 gives a row of zeros: padding needs no valid id, and a shard of the table sums with the others.
    """
    if ids.dim() != 1 or ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"ids is {ids.dtype} of shape {tuple(ids.shape)}; it must be [T] int32 or int64")
    if isinstance(weight, PackedWeight):
        return weight.rows(ids, 1.0 if scale is None else scale)
    if weight.dim() != 2:
        raise ValueError(f"weight has shape {tuple(weight.shape)}; it must be [V, E]")
    if dispatch.form(weight) == "triton":
        out = torch.empty((ids.shape[0], weight.shape[1]), dtype=weight.dtype, device=weight.device)
        _launch(ids, weight, out, scale)
        return out
    return reference(ids, weight, scale=scale)


def reference(ids: Tensor, weight: Tensor, *, scale: float | None = None) -> Tensor:
    """Gather in plain torch."""
    inside = (ids >= 0) & (ids < weight.shape[0])
    # A tape cannot hold a decision; zeros are chosen there without one.
    if record.recorder is None and inside.all():
        rows = functional.embedding(ids, weight)
    else:
        rows = functional.embedding(torch.where(inside, ids, 0), weight) * inside[:, None]
    return rows if scale is None else (rows.float() * scale).to(weight.dtype)


def _launch(ids: Tensor, weight: Tensor, out: Tensor, scale: float | None) -> None:
    T, E = out.shape
    if T == 0 or E == 0:
        return
    # 2,048 elements a program at 4 warps: 16 a thread, two 16-byte loads in flight; a long row spans several programs.
    block = min(2048, next_power_of_2(E))
    _embedding_kernel[(T, cdiv(E, block))](
        ids, weight, out, weight.shape[0], E, weight.stride(0),
        1.0 if scale is None else scale, BLOCK=block, PDL=dependent.serves(weight),
        num_warps=4,
    )  # fmt: skip


@jit
def _embedding_kernel(ids_ptr, weight_ptr, out_ptr, V, E, stride, scale, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:  # it starts in the usual way: whoever comes next finds the step's inputs complete
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids_ptr + row).to(tl.int64)
    live = (column < E) & (token >= 0) & (token < V)
    value = tl.load(weight_ptr + token * stride + column, mask=live, other=0.0).to(tl.float32) * scale
    tl.store(out_ptr + row * E + column, value.to(out_ptr.dtype.element_ty), mask=column < E)
