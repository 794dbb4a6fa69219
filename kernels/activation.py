"""The gate of a feed-forward block: act(first half) * second half of each row, act being SiLU or GELU.

gpt-oss has one of its own (`CLAMPED`): both halves are kept within limits, the sigmoid is steeper, and the second half
counts one more.
"""

# mypy: disable-error-code="no-untyped-def"
import math

import torch
from torch import Tensor
from torch.nn import functional

from kernels import dispatch
from kernels.language import cdiv, jit, next_power_of_2, tl
from kernels.native import record

SILU, GELU, GELU_TANH, CLAMPED = 0, 1, 2, 3
LIMIT, STEEPNESS = 7.0, 1.702  # of CLAMPED


def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(x[..., :F]) * x[..., F:] for `x` [T, 2F], in x's dtype."""
    return act_and_mul(x, SILU)


def gelu_and_mul(x: Tensor, *, tanh: bool = True) -> Tensor:
    """Return gelu(x[..., :F]) * x[..., F:] for `x` [T, 2F]; `tanh` picks the tanh approximation (Gemma)."""
    return act_and_mul(x, GELU_TANH if tanh else GELU)


def reference(x: Tensor, act: int) -> Tensor:
    """Gate in plain torch; float32 inside, so that a bf16 gate is rounded once."""
    gate, up = x.float().chunk(2, dim=-1)
    if act == CLAMPED:
        gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT) + 1
        return (gate * torch.sigmoid(STEEPNESS * gate) * up).to(x.dtype)
    shape = "tanh" if act == GELU_TANH else "none"
    gate = functional.silu(gate) if act == SILU else functional.gelu(gate, approximate=shape)
    return (gate * up).to(x.dtype)


def act_and_mul(x: Tensor, act: int) -> Tensor:
    """Return act(x[..., :F]) * x[..., F:], `act` being SILU, GELU, GELU_TANH or CLAMPED."""
    if x.dim() != 2 or x.shape[1] % 2:
        raise ValueError(f"x has shape {tuple(x.shape)}; it must be [T, 2F]")
    form = dispatch.form(x)
    if form == "native" and x.dtype == torch.float32 and x.stride(1) == 1:
        return _native(x, act)
    if form != "triton":
        return reference(x, act)
    if x.stride(1) != 1:
        raise ValueError("x must be contiguous in its last dimension")
    out = torch.empty((x.shape[0], x.shape[1] // 2), dtype=x.dtype, device=x.device)
    _launch(x, out, act)
    return out


def _native(x: Tensor, act: int) -> Tensor:
    T, width = x.shape[0], x.shape[1] // 2
    out = record.empty((T, width))
    pointers = (x.data_ptr(), out.data_ptr())
    record.call([record.Record(record.ACTIVATION, (T, width, x.stride(0), act), pointers)], (x, out))
    return out


def _launch(x: Tensor, out: Tensor, act: int) -> None:
    T, width = out.shape
    if T == 0 or width == 0:
        return
    # 1,024 outputs a program at 4 warps: 8 a thread, one 16-byte load of each half.
    block = min(1024, next_power_of_2(width))
    _activation_kernel[(T, cdiv(width, block))](x, out, width, x.stride(0), ACT=act, BLOCK=block, num_warps=4)


_INV_SQRT_2 = tl.constexpr(1 / math.sqrt(2))
_TWO_SQRT_2_OVER_PI = tl.constexpr(2 * math.sqrt(2 / math.pi))
_LIMIT, _STEEPNESS = tl.constexpr(LIMIT), tl.constexpr(STEEPNESS)


@jit
def gated(gate, up, ACT: tl.constexpr):
    if ACT == 0:
        return gate / (1 + tl.exp(-gate)) * up
    if ACT == 1:
        return 0.5 * gate * (1 + tl.erf(gate * _INV_SQRT_2)) * up
    if ACT == 2:  # 0.5 (1 + tanh u) = sigmoid(2u)
        return gate / (1 + tl.exp((gate + 0.044715 * gate * gate * gate) * -_TWO_SQRT_2_OVER_PI)) * up
    gate = tl.where(gate > _LIMIT, _LIMIT, gate)  # what is no number stays none
    up = tl.where(up > _LIMIT, _LIMIT, tl.where(up < -_LIMIT, -_LIMIT, up))
    return gate / (1 + tl.exp(gate * -_STEEPNESS)) * (up + 1)


@jit
def _activation_kernel(x_ptr, out_ptr, width, stride, ACT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < width
    gate = tl.load(x_ptr + row * stride + column, mask=live, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * stride + width + column, mask=live, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + column, gated(gate, up, ACT).to(out_ptr.dtype.element_ty), mask=live)
