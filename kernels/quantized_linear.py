"""Linear layer on packed quantized weights: int8 activations, one scale per row and 32 values, never one for the batch.

It is what llama.cpp computes with its block formats, for whole batches: the activations of a row are rounded to 8 bits
in blocks of 32, products are integer sums, each scaled by both blocks' scales. Rows never depend on one another.
A gate's result may stay rounded for the product that follows: then no float of it goes through memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels import activation, dispatch
from kernels.native import record
from kernels.native.packed_weight import PackedWeight

_NOTHING = 2.0**-121  # NOTHING in native/src/quantize.c


class Rounded(NamedTuple):
    """Activations as int8 [T, K], and float32 [T, K / 32, 4] for each block of 32: BlockScale in native/src/ops.h."""

    q: Tensor
    scales: Tensor


def quantized_linear(x: Tensor | Rounded, weights: Sequence[PackedWeight], bias: Tensor | None = None) -> Tensor:
    """Return `x` [T, K] times the stacked `weights` [N_i, K] transposed, plus `bias` [sum N]: float32 [T, sum N]."""
    width = sum(weight.shape[0] for weight in weights)
    _check(x, weights, bias, width)
    native = dispatch.form(x if isinstance(x, Tensor) else x.scales) == "native"
    return _launch(x, weights, bias, width) if native else reference(x, weights, bias)


def gated_rounded(x: Tensor, weight: PackedWeight, act: int, bias: Tensor | None = None) -> Rounded:
    """Return act(x G^T) * (x U^T), rounded. `weight` [2F, K] is G, then U; `act` is one of `activation`'s."""
    _check(x, [weight], bias, weight.shape[0])
    if not gates(weight):
        raise ValueError(f"a weight of {weight.shape[0]} outputs is not two halves of whole blocks of 32")
    if dispatch.form(x) != "native":
        return rounded(activation.reference(reference(x, [weight], bias), act))
    return _launch_gated(x, weight, act, bias)


def gates(weight: PackedWeight) -> bool:
    """Tell whether `gated_rounded` takes this weight: each half whole blocks of the product that follows."""
    return weight.shape[0] % 64 == 0


def reference(x: Tensor | Rounded, weights: Sequence[PackedWeight], bias: Tensor | None = None) -> Tensor:
    """Round the activations in blocks and multiply in plain torch."""
    numbers = values(rounded(x) if isinstance(x, Tensor) else x)
    return functional.linear(numbers, torch.cat([weight.dequantize() for weight in weights]), bias)


def rounded(x: Tensor) -> Rounded:
    """Return `x` [T, K] as int8 in blocks of 32, in plain torch."""
    blocks = x.reshape(x.shape[0], -1, 32)
    top = blocks.abs().amax(-1, keepdim=True)
    # A true division, as the kernel's: torch makes `127 / top` a product with a reciprocal, and ties would round apart.
    inverse = torch.where(top >= _NOTHING, torch.full_like(top, 127.0) / top, torch.zeros_like(top))
    q = torch.round(blocks * inverse)
    scale = top / 127
    halves = q.view(*q.shape[:2], 2, 16).sum(-1)
    scales = torch.cat([scale, scale * halves.sum(-1, keepdim=True), -32 * scale * halves], -1)
    return Rounded(q.to(torch.int8).reshape(x.shape), scales)


def values(x: Rounded) -> Tensor:
    """Return the numbers that rounded activations stand for, float32 [T, K]."""
    return (x.q.view(*x.scales.shape[:2], 32) * x.scales[..., :1]).reshape(x.q.shape)


def _check(x: Tensor | Rounded, weights: Sequence[PackedWeight], bias: Tensor | None, width: int) -> None:
    size, kind = (x.q, torch.int8) if isinstance(x, Rounded) else (x, torch.float32)
    if size.dim() != 2 or size.dtype != kind or any(weight.shape[1] != size.shape[1] for weight in weights):
        raise ValueError(
            f"x is {size.dtype} of shape {tuple(size.shape)}; it must be {kind} [T, {weights[0].shape[1]}]"
        )
    if bias is not None and (bias.shape != (width,) or bias.dtype != torch.float32 or not bias.is_contiguous()):
        raise ValueError(f"bias is {bias.dtype} of shape {tuple(bias.shape)}; it must be float32 ({width},)")


def _rounding(x: Tensor) -> tuple[Rounded, record.Record]:
    """Return where the rounded activations will be, and the call that puts them there. Rows of `x` are contiguous."""
    T, K = x.shape
    found = Rounded(record.empty((T, K), torch.int8), record.empty((T, K // 32, 4)))
    pointers = (x.data_ptr(), found.q.data_ptr(), found.scales.data_ptr())
    return found, record.Record(record.QUANTIZE, (T, K, x.stride(0)), pointers)


def _launch(x: Tensor | Rounded, weights: Sequence[PackedWeight], bias: Tensor | None, width: int) -> Tensor:
    T, K = x.q.shape if isinstance(x, Rounded) else x.shape
    out = record.empty((T, width))
    if T == 0:
        return out
    records = []
    if isinstance(x, Tensor):
        x = x if x.stride(1) == 1 else x.contiguous()
        source, (x, rounding) = x, _rounding(x)
        records.append(rounding)
    else:
        source = None
    at = 0
    for weight in weights:
        pointers = (
            x.q.data_ptr(), x.scales.data_ptr(), weight.tiles.data_ptr(), out.data_ptr() + 4 * at,
            0 if bias is None else bias.data_ptr() + 4 * at,
        )  # fmt: skip
        records.append(record.Record(record.LINEAR, (T, K, weight.shape[0], width, weight.format), pointers))
        at += weight.shape[0]
    record.call(records, (source, *x, out, bias, *(weight.tiles for weight in weights)))
    return out


def _launch_gated(x: Tensor, weight: PackedWeight, act: int, bias: Tensor | None) -> Rounded:
    (T, K), N = x.shape, weight.shape[0]
    out = Rounded(record.empty((T, N // 2), torch.int8), record.empty((T, N // 64, 4)))
    if T == 0:
        return out
    x = x if x.stride(1) == 1 else x.contiguous()
    found, rounding = _rounding(x)
    pointers = (
        found.q.data_ptr(), found.scales.data_ptr(), weight.tiles.data_ptr(), 0, record.pointer(bias),
        out.q.data_ptr(), out.scales.data_ptr(),
    )  # fmt: skip
    product = record.Record(record.LINEAR, (T, K, N, 0, weight.format, act), pointers, shape=record.BY_COLUMN)
    record.call([rounding, product], (x, *found, weight.tiles, bias, *out))
    return out
