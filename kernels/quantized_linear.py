"""Linear layer on packed quantized weights: int8 activations, one scale per row and 32 values, never one for the batch.

It is what llama.cpp computes with its block formats, for whole batches: the activations of a row are rounded to 8 bits
in blocks of 32, products are integer sums, each scaled by both blocks' scales. Rows never depend on one another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from kernels import dispatch
from kernels.native import record
from kernels.native.packed_weight import PackedWeight


def quantized_linear(x: Tensor, weights: Sequence[PackedWeight], bias: Tensor | None = None) -> Tensor:
    """Return `x` [T, K] times the stacked `weights` [N_i, K] transposed, plus `bias` [sum N]: float32 [T, sum N]."""
    width = sum(weight.shape[0] for weight in weights)
    if x.dim() != 2 or x.dtype != torch.float32 or any(weight.shape[1] != x.shape[1] for weight in weights):
        raise ValueError(f"x is {x.dtype} of shape {tuple(x.shape)}; it must be float32 [T, {weights[0].shape[1]}]")
    if bias is not None and (bias.shape != (width,) or bias.dtype != torch.float32 or not bias.is_contiguous()):
        raise ValueError(f"bias is {bias.dtype} of shape {tuple(bias.shape)}; it must be float32 ({width},)")
    return _launch(x, weights, bias, width) if dispatch.form(x) == "native" else reference(x, weights, bias)


def reference(x: Tensor, weights: Sequence[PackedWeight], bias: Tensor | None = None) -> Tensor:
    """Round the activations in blocks and multiply in plain torch."""
    rounded = rounded_activations(x)
    return functional.linear(rounded, torch.cat([weight.dequantize() for weight in weights]), bias)


def rounded_activations(x: Tensor) -> Tensor:
    """Return what `x` [T, K] becomes as int8 in blocks of 32."""
    blocks = x.reshape(x.shape[0], -1, 32)
    top = blocks.abs().amax(-1, keepdim=True)
    # A true division, as the kernel's: torch makes `127 / top` a product with a reciprocal, and ties would round apart.
    inverse = torch.where(top > 0, torch.full_like(top, 127.0) / top, torch.zeros_like(top))
    return (torch.round(blocks * inverse) * (top / 127)).reshape(x.shape)


def _launch(x: Tensor, weights: Sequence[PackedWeight], bias: Tensor | None, width: int) -> Tensor:
    T, K = x.shape
    out = record.empty((T, width))
    if T == 0:
        return out
    if x.stride(1) != 1:
        x = x.contiguous()
    q = record.empty((T, K), torch.int8)
    scales = record.empty((T, K // 32, 4))
    records = [record.Record(record.QUANTIZE, (T, K, x.stride(0)), (x.data_ptr(), q.data_ptr(), scales.data_ptr()))]
    at = 0
    for weight in weights:
        pointers = (
            q.data_ptr(), scales.data_ptr(), weight.tiles.data_ptr(), out.data_ptr() + 4 * at,
            0 if bias is None else bias.data_ptr() + 4 * at,
        )  # fmt: skip
        records.append(record.Record(record.LINEAR, (T, K, weight.shape[0], width, weight.format), pointers))
        at += weight.shape[0]
    record.call(records, (x, q, scales, out, bias, *(weight.tiles for weight in weights)))
    return out
