"""Gumbel noise by counter: a pure function of (seed, position, token id), so a row's draw never depends on its batch.

Seed and position are mixed to a 64-bit key by splitmix64 (Steele, Lea, Flood 2014); key and token id by two rounds of a
32-bit finalizer (Ellis, `lowbias32`), about 25 integer instructions a token where Philox 4x32-10 takes twice as many.
Then E = -log(1 - u) is exponential and -log(E) Gumbel: argmax(logit + noise) is a draw from softmax(logits). The series
near u = 0 keeps the tail of large noise fine-grained; it reaches 22.9, so that ties do not show among 2^18 tokens.
Both forms do the same integer arithmetic and differ by roundings of `log2` alone, which a GPU has as one instruction.
"""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels.language import INTERPRETED, jit, tl

_GOLDEN_64, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_GOLDEN_32, _BIAS_1, _BIAS_2 = 0x9E3779B1, 0x7FEB352D, 0x846CA68B
_LN_2 = 0.6931471805599453


def reference(seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """Return noise float32 [S, n] for `seeds` and `positions` [S] (int64) and token `ids` [n] or [S, n]."""
    key = _mix64(_mix64(seeds.long() + _signed(_GOLDEN_64, 64)) + positions.long() * _signed(_GOLDEN_64, 64))
    low, high = _wrap32(key)[:, None], _wrap32(key >> 32)[:, None]
    h = _mix32(ids.int() * _signed(_GOLDEN_32, 32) + low)
    h = _mix32(h.bitwise_xor_(high))
    u = (h.long() & 0xFFFFFFFF).float().mul_(2.0**-32).add_(2.0**-33)
    series = u * (1 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * (1 / 6))))))
    exponential = torch.where(u < 2.0**-4, series, (1 - u).clamp_(min=2.0**-25).log2_().mul_(-_LN_2))
    return exponential.log2_().mul_(-_LN_2)


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _wrap32(x: Tensor) -> Tensor:
    """Low 32 bits of an int64 as int32."""
    return (((x & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000).int()


def _mix64(z: Tensor) -> Tensor:
    z = (z ^ ((z >> 30) & (1 << 34) - 1)) * _signed(_MIX_1, 64)
    z = (z ^ ((z >> 27) & (1 << 37) - 1)) * _signed(_MIX_2, 64)
    return z ^ ((z >> 31) & (1 << 33) - 1)


def _mix32(h: Tensor) -> Tensor:
    """Finalize int32 `h` in place; shifts are made logical by a mask."""
    h.bitwise_xor_((h >> 16).bitwise_and_(0xFFFF)).mul_(_signed(_BIAS_1, 32))
    h.bitwise_xor_((h >> 15).bitwise_and_(0x1FFFF)).mul_(_signed(_BIAS_2, 32))
    return h.bitwise_xor_((h >> 16).bitwise_and_(0xFFFF))


_GOLDEN_64_T, _MIX_1_T, _MIX_2_T = tl.constexpr(_GOLDEN_64), tl.constexpr(_MIX_1), tl.constexpr(_MIX_2)
_MINUS_LN_2_T = tl.constexpr(-_LN_2)
_GOLDEN_32_T, _BIAS_1_T, _BIAS_2_T = tl.constexpr(_GOLDEN_32), tl.constexpr(_BIAS_1), tl.constexpr(_BIAS_2)


@jit
def _mix64_kernel(z):
    z = (z ^ (z >> 30)) * _MIX_1_T
    z = (z ^ (z >> 27)) * _MIX_2_T
    return z ^ (z >> 31)


@jit
def _mix32_kernel(h):
    h = (h ^ (h >> 16)) * _BIAS_1_T
    h = (h ^ (h >> 15)) * _BIAS_2_T
    return h ^ (h >> 16)


@jit
def noise_key(seed, position):
    """Key of a row, once per program (uint64)."""
    seed, position = seed.to(tl.uint64, bitcast=True), position.to(tl.uint64, bitcast=True)
    return _mix64_kernel(_mix64_kernel(seed + _GOLDEN_64_T) + position * _GOLDEN_64_T)


@jit
def gumbel(key, ids):
    """Noise of token `ids` (int32) under a row's key, float32."""
    h = _mix32_kernel(ids.to(tl.uint32, bitcast=True) * _GOLDEN_32_T + key.to(tl.uint32))
    h = _mix32_kernel(h ^ (key >> 32).to(tl.uint32))
    u = h.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    series = u * (1 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * (1 / 6))))))
    exponential = tl.where(u < 0.0625, series, _log2(tl.maximum(1 - u, 2.9802322387695312e-08)) * _MINUS_LN_2_T)
    return _log2(exponential) * _MINUS_LN_2_T


@jit
def _log2(x):
    """The GPU's own instruction, right to 2^-22; `tl.log2` is a polynomial that costs as much as all the rest."""
    if INTERPRETED:
        return tl.log2(x)
    return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=r,r", [x], tl.float32, is_pure=True, pack=1)
