"""Linear layer on weights of 4 or 8 bits that stay so on the card; activations are not rounded.

With few rows memory decides, and a weight of 4 bits is a quarter of the bytes. One row reads whole rows of codes; up to
64 take the tensor cores, on codes less their zeros, which 16 bits hold exactly, and scale each group's sum: no weight
is rounded. More rows than that are worth making the numbers once, in a buffer for one layer, and torch's product.

Not yet measured on a card: tile sizes are those of the unquantized kernels, halved where a byte holds two.
"""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor
from torch.nn import functional

from kernels import dispatch, fixed_linear
from kernels.grouped_weight import GroupedWeight, decoded
from kernels.language import cdiv, jit, jit_alike, next_power_of_2, tl

_MAX_ROWS = 64
_LEAST_DOT = 16  # inputs that a tensor core takes at once


def grouped_linear(x: Tensor, weight: GroupedWeight, bias: Tensor | None = None) -> Tensor:
    """Return `x` [T, E] times `weight` [F, E] transposed, plus `bias` [F]: [T, F] in x's dtype."""
    if x.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x has shape {tuple(x.shape)}; the weight {weight.shape} needs [T, {weight.shape[1]}]")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(bias.shape)}; it must be ({weight.shape[0]},)")
    if dispatch.form(x) != "triton":
        return reference(x, weight, bias)
    if dispatch.fixed():
        return fixed_linear.fixed_linear(x, weight.launch(x.dtype), bias)
    if 0 < x.shape[0] <= (_MAX_ROWS if _block(weight) >= _LEAST_DOT * weight.each else 1):
        return _launch(x, weight, bias)
    return functional.linear(x, weight.launch(x.dtype), bias)


def reference(x: Tensor, weight: GroupedWeight, bias: Tensor | None = None) -> Tensor:
    """Make the numbers and multiply with torch."""
    return functional.linear(x, weight.reference(x.dtype), bias)


def _block(weight: GroupedWeight) -> int:
    """Return how many inputs, all of one group, a program takes at a time: a power of two, at most 128."""
    group = weight.group
    return min(group & -group, 128)


def _launch(x: Tensor, weight: GroupedWeight, bias: Tensor | None) -> Tensor:
    (T, E), F = x.shape, weight.shape[0]
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty((T, F), dtype=x.dtype, device=x.device)
    arguments = (
        x, weight.raw, weight.scales, weight.scales if weight.zeros is None else weight.zeros,
        out if bias is None else bias, out, F, E, weight.scales.shape[1], weight.group,
    )  # fmt: skip
    form = {
        "KIND": weight.kind, "EACH": weight.each, "ZEROS": weight.zeros is not None, "MIDDLE": weight.middle,
        "BIAS": bias is not None,
    }  # fmt: skip
    if T == 1:
        block = min(next_power_of_2(E // weight.each), 2048)
        rows = 4 if F >= 8192 else 2  # few rows a program, so that even a small F fills the card
        _one_row_kernel[(cdiv(F, rows),)](
            *arguments, **form, BLOCK=block, ROWS=rows, num_warps=max(1, min(8, block // 256))
        )
        return out
    tokens = max(_LEAST_DOT, next_power_of_2(T))
    # 16 outputs a program where F is small: 4096 of them are 256 programs, two for each of a card's processors.
    outputs = 32 if F >= 8192 else 16
    _few_rows_kernel[(cdiv(F, outputs),)](
        *arguments, T, x.stride(0), **form, BLOCK=_block(weight), TOKENS=tokens, OUTPUTS=outputs, num_warps=4
    )
    return out


@jit
def _one_row_kernel(
    x_ptr, raw_ptr, scale_ptr, zero_ptr, bias_ptr, out_ptr, F, E, G, group,
    KIND: tl.constexpr, EACH: tl.constexpr, ZEROS: tl.constexpr, MIDDLE: tl.constexpr, BIAS: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    wide = row.to(tl.int64)[:, None]
    width = E // EACH
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
    for k in range(0, width, BLOCK):
        at = k + tl.arange(0, BLOCK)
        inside = at < width
        live = (row < F)[:, None] & inside[None, :]
        raw = tl.load(raw_ptr + wide * width + at[None, :], mask=live, other=0)
        place = wide * G + (at * EACH // group)[None, :]
        scale = tl.load(scale_ptr + place, mask=live, other=0.0).to(tl.float32)
        zero = tl.load(zero_ptr + place, mask=live, other=0).to(tl.float32) if ZEROS else MIDDLE
        x = tl.load(x_ptr + at * EACH, mask=inside, other=0.0).to(tl.float32)
        if EACH == 2:
            odd = tl.load(x_ptr + at * EACH + 1, mask=inside, other=0.0).to(tl.float32)
            low, high = decoded(raw & 15, KIND), decoded(raw >> 4, KIND)
            acc += ((low - zero) * x[None, :] + (high - zero) * odd[None, :]) * scale
        else:
            acc += (decoded(raw, KIND) - zero) * x[None, :] * scale
    y = tl.sum(acc, 1)
    if BIAS:
        y += tl.load(bias_ptr + row, mask=row < F, other=0.0).to(tl.float32)
    tl.store(out_ptr + row, y.to(out_ptr.dtype.element_ty), mask=row < F)


@jit_alike("T")
def _few_rows_kernel(
    x_ptr, raw_ptr, scale_ptr, zero_ptr, bias_ptr, out_ptr, F, E, G, group, T, x_stride,
    KIND: tl.constexpr, EACH: tl.constexpr, ZEROS: tl.constexpr, MIDDLE: tl.constexpr, BIAS: tl.constexpr,
    BLOCK: tl.constexpr, TOKENS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    wide = row.to(tl.int64)
    token = tl.arange(0, TOKENS)
    here = (token < T)[:, None]
    there = (row < F)[None, :]
    width = E // EACH
    acc = tl.zeros([TOKENS, OUTPUTS], tl.float32)
    for k in range(0, E, BLOCK):
        at = k // EACH + tl.arange(0, BLOCK // EACH)
        raw = tl.load(raw_ptr + wide[None, :] * width + at[:, None], mask=there, other=0)
        place = wide * G + k // group
        scale = tl.load(scale_ptr + place, mask=row < F, other=0.0).to(tl.float32)
        zero = tl.load(zero_ptr + place, mask=row < F, other=0).to(tl.float32)[None, :] if ZEROS else MIDDLE
        source = x_ptr + token.to(tl.int64)[:, None] * x_stride + at[None, :] * EACH
        x = tl.load(source, mask=here, other=0.0)
        if EACH == 2:
            odd = tl.load(source + 1, mask=here, other=0.0)
            low, high = (decoded(raw & 15, KIND) - zero).to(x.dtype), (decoded(raw >> 4, KIND) - zero).to(x.dtype)
            part = tl.dot(x, low, input_precision="ieee") + tl.dot(odd, high, input_precision="ieee")
        else:
            part = tl.dot(x, (decoded(raw, KIND) - zero).to(x.dtype), input_precision="ieee")
        acc += part * scale[None, :]
    if BIAS:
        acc += tl.load(bias_ptr + row, mask=row < F, other=0.0).to(tl.float32)[None, :]
    place = out_ptr + token.to(tl.int64)[:, None] * F + row[None, :]
    tl.store(place, acc.to(out_ptr.dtype.element_ty), mask=here & there)
