"""Products of which each head has a matrix of its own: queries into the space of latents, latents into values.

Libraries have them as batched products. In a fixed order (`deterministic`) a kernel of one tiling takes their place:
there a sum always goes in the order of the inputs, in one accumulator, however many rows stand beside it. On a CPU a
row's bits should be its own, too; the library's are from four rows on, so fewer are filled up.
"""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels import dispatch
from kernels.language import cdiv, jit_alike, tl
from kernels.native import record

_LEAST_TOKENS = 4  # MKL: 1 to 3 rows take kernels that add in another order, 4 to 512 had the same bits (EPYC)


def head_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return `x` [T, H, I] times each head's `weight` [H, F, I] transposed: [T, H, F] in x's dtype.

    Both may have any strides, and so has what is returned.
    """
    if x.dim() != 3 or weight.dim() != 3 or (weight.shape[0], weight.shape[2]) != x.shape[1:]:
        raise ValueError(f"weight has shape {tuple(weight.shape)}; x {tuple(x.shape)} needs [H, F, I]")
    if dispatch.fixed() and dispatch.form(x) == "triton":
        return _launch(x, weight)
    record.refuse("products of each head are torch's")
    if dispatch.form(x) == "native" and 0 < (T := x.shape[0]) < _LEAST_TOKENS:
        filled = torch.cat((x, x.new_zeros(_LEAST_TOKENS - T, *x.shape[1:])))
        return reference(filled, weight)[:T]
    return reference(x, weight)


def reference(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply with torch: one batched product."""
    return torch.bmm(x.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)


def _launch(x: Tensor, weight: Tensor) -> Tensor:
    T, H, _ = x.shape
    F = weight.shape[1]
    out = torch.empty((T, H, F), dtype=x.dtype, device=x.device)
    # More tokens in a tile are more columns beside a sum, and change nothing in it.
    rows, tokens, depth = 64, 16 if T <= 16 else 64, 32
    if T:
        _head_linear_kernel[(cdiv(F, rows), cdiv(T, tokens), H)](
            x, weight, out, T, x.stride(0), x.stride(1), x.stride(2), weight.stride(0), weight.stride(1),
            weight.stride(2), F=F, SIZE=x.shape[2], ROWS=rows, TOKENS=tokens, DEPTH=depth, num_warps=4,
        )  # fmt: skip
    return out


@jit_alike("T")
def _head_linear_kernel(
    x_ptr, weight_ptr, out_ptr, T, x_stride_t, x_stride_h, x_stride_i, stride_h, stride_f, stride_i,
    F: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = (tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    head = tl.program_id(2).to(tl.int64)
    acc = tl.zeros([ROWS, TOKENS], tl.float32)
    for at in range(0, SIZE, DEPTH):
        k = at + tl.arange(0, DEPTH)
        w_at = head * stride_h + row[:, None].to(tl.int64) * stride_f + k[None, :] * stride_i
        w = tl.load(weight_ptr + w_at, mask=(row < F)[:, None] & (k < SIZE)[None, :], other=0.0)
        x_at = token[None, :] * x_stride_t + head * x_stride_h + k[:, None] * x_stride_i
        x = tl.load(x_ptr + x_at, mask=(token < T)[None, :] & (k < SIZE)[:, None], other=0.0)
        acc = tl.dot(w, x, acc, input_precision="ieee")
    to = out_ptr + (token[:, None] * tl.num_programs(2) + head) * F + row[None, :]
    tl.store(to, tl.trans(acc).to(out_ptr.dtype.element_ty), mask=(token < T)[:, None] & (row < F)[None, :])
