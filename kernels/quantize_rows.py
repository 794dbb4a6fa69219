"""Rows of activations as float8 with scales of their own: plain, behind an RMS norm, behind a gate.

number = scale * code, scale = max|x| / 448 of a row, or of each 128 of its columns; a row's codes depend on nothing but
the row. Norm and gate are computed in float32 and rounded once, to the code.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import activation, dispatch, rms_norm
from kernels.activation import gated
from kernels.few_rows_product import RmsNormWeights
from kernels.float8_weight import SPAN
from kernels.language import INTERPRETED, cdiv, jit_alike, next_power_of_2, tl

_MOST = tl.constexpr(448.0)  # the largest number of float8_e4m3
_LEAST = tl.constexpr(1e-10)  # of a scale: a row of zeros has one too
PLAIN, NORM, GATE = (tl.constexpr(n) for n in range(3))


@dataclass(frozen=True)
class QuantizedRows:
    """number = scale * code, [T, E].

    `codes`: float8_e4m3fn. `scales`: float32 [T, 1], or [T, E / 128] (rounded up), those of a column side by side.
    `dtype`: what they were, and what their products are.
    """

    codes: Tensor
    scales: Tensor
    dtype: torch.dtype

    def reference(self) -> Tensor:
        """Return the float32 numbers [T, E]."""
        E = self.codes.shape[1]
        scales = self.scales
        if scales.shape[1] > 1:
            scales = scales.repeat_interleave(SPAN.value, 1)[:, :E]
        return self.codes.float() * scales


def quantize_rows(x: Tensor, *, by_blocks: bool = False) -> QuantizedRows:
    """Quantize `x` [T, E]."""
    _check(x)
    if dispatch.form(x) != "triton":
        return reference(x, by_blocks=by_blocks)
    return _launch(x, x.shape[1], PLAIN.value, by_blocks)


def normed_rows(
    x: Tensor, norm: RmsNormWeights, residual: Tensor | None = None, *, by_blocks: bool = False
) -> QuantizedRows:
    """Quantize the RMS norm of `x` [T, E], which is first added to `residual` [T, E] in place if there is one."""
    _check(x)
    if residual is not None and (residual.shape != x.shape or not residual.is_contiguous()):
        raise ValueError(f"residual has shape {tuple(residual.shape)}; it must be contiguous {tuple(x.shape)}")
    if dispatch.form(x) == "triton":
        return _launch(x, x.shape[1], NORM.value, by_blocks, norm=norm, residual=residual)
    total = x if residual is None else residual.add_(x)
    return reference(rms_norm.reference(total.float(), norm.weight, norm.eps, offset=norm.offset), by_blocks=by_blocks)


def gated_rows(x: Tensor, act: int, *, by_blocks: bool = False) -> QuantizedRows:
    """Quantize act(x[..., :F]) * x[..., F:] of `x` [T, 2F], `act` being one of `activation`'s."""
    _check(x)
    if x.shape[1] % 2:
        raise ValueError(f"x has shape {tuple(x.shape)}; it must be [T, 2F]")
    if dispatch.form(x) != "triton":
        return reference(activation.reference(x.float(), act), by_blocks=by_blocks, dtype=x.dtype)
    return _launch(x, x.shape[1] // 2, GATE.value, by_blocks, act=act)


def reference(x: Tensor, *, by_blocks: bool = False, dtype: torch.dtype | None = None) -> QuantizedRows:
    """Quantize in plain torch what may be wider than `dtype`."""
    T, E = x.shape
    width = SPAN.value if by_blocks else E
    groups = cdiv(E, width)
    padded = torch.nn.functional.pad(x.float(), (0, groups * width - E)).view(T, groups, width)
    scales = (padded.abs().amax(2) / _MOST.value).clamp(min=_LEAST.value)
    codes = (padded / scales[:, :, None]).view(T, groups * width)[:, :E].to(torch.float8_e4m3fn)
    return QuantizedRows(codes.contiguous(), scales.t().contiguous().t(), dtype or x.dtype)


def _check(x: Tensor) -> None:
    if x.dim() != 2 or x.stride(1) != 1:
        raise ValueError(f"x has shape {tuple(x.shape)}; it must be [T, E], contiguous in its last dimension")


def _launch(
    x: Tensor, E: int, form: int, by_blocks: bool, *, norm: RmsNormWeights | None = None,
    residual: Tensor | None = None, act: int = 0,
) -> QuantizedRows:  # fmt: skip
    T = x.shape[0]
    codes = torch.empty((T, E), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((cdiv(E, SPAN.value) if by_blocks else 1, T), dtype=torch.float32, device=x.device)
    block = max(next_power_of_2(E), SPAN.value)
    if T:
        # A row a program, whole in registers: 16 or 32 numbers a thread, which leaves room for a gate's two halves.
        _quantize_rows_kernel[(T,)](
            x, x if norm is None else norm.weight, x if residual is None else residual, codes, scales, T, x.stride(0),
            0.0 if norm is None else norm.eps, 0.0 if norm is None else norm.offset,
            E=E, BLOCK=block, FORM=form, ADD=residual is not None, ACT=act, BY_BLOCKS=by_blocks,
            num_warps=max(1, min(32, block // 512)),
        )  # fmt: skip
    return QuantizedRows(codes, scales.t(), x.dtype)


@jit_alike("T")
def _quantize_rows_kernel(
    x_ptr, norm_ptr, residual_ptr, codes_ptr, scales_ptr, T, stride, eps, offset,
    E: tl.constexpr, BLOCK: tl.constexpr, FORM: tl.constexpr, ADD: tl.constexpr, ACT: tl.constexpr,
    BY_BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    live = column < E
    x = tl.load(x_ptr + row * stride + column, mask=live, other=0.0).to(tl.float32)
    if FORM == GATE:
        up = tl.load(x_ptr + row * stride + E + column, mask=live, other=0.0).to(tl.float32)
        x = gated(x, up, ACT)
    if ADD:
        total = tl.load(residual_ptr + row * E + column, mask=live, other=0.0).to(tl.float32) + x
        rounded = total.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + row * E + column, rounded, mask=live)
        x = rounded.to(tl.float32)
    if FORM == NORM:
        weight = tl.load(norm_ptr + column, mask=live, other=0.0).to(tl.float32) + offset
        x = x * tl.rsqrt(tl.sum(x * x, 0) / E + eps) * weight
        x = tl.where(live, x, 0.0)
    if BY_BLOCKS:
        GROUPS: tl.constexpr = BLOCK // SPAN
        x = tl.reshape(x, [GROUPS, SPAN])
        scale = tl.maximum(tl.max(tl.abs(x), 1) / _MOST, _LEAST)
        group = tl.arange(0, GROUPS)
        tl.store(scales_ptr + group.to(tl.int64) * T + row, scale, mask=group < tl.cdiv(E, SPAN))
        x = tl.reshape(x / scale[:, None], [BLOCK])
    else:
        scale = tl.maximum(tl.max(tl.abs(x), 0) / _MOST, _LEAST)
        tl.store(scales_ptr + row, scale)
        x = x / scale
    if INTERPRETED:  # its conversion loses the carry where rounding reaches the next power of two
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x7FFFF + (bits >> 20 & 1)) & -0x100000).to(tl.float32, bitcast=True)
    tl.store(codes_ptr + row * E + column, tl.clamp(x, -_MOST, _MOST).to(tl.float8e4nv), mask=live)
