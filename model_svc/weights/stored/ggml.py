"""GGML block formats -> float32, vectorised over whole tensors.

Each function takes blocks [n, bytes of a block] (uint8) and returns their values [n, values of a block]. Products and
sums are in the order of the ggml reference (scale * integer, then + minimum), so results are equal to it bit by bit.
Source: ggml-quants.c, `dequantize_row_*`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from model_svc.weights.stored.ggml_types import BY_NAME

_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # 4 bit floats, doubled


def dequantize(rows: Tensor, type_name: str) -> Tensor:
    """Return the float32 values of rows of blocks: uint8 [rows, bytes] -> [rows, values]."""
    kind = BY_NAME[type_name]
    blocks = rows.reshape(-1, kind.num_bytes)
    return _FORMATS[type_name](blocks).reshape(rows.shape[0], -1)


def _half(raw: Tensor) -> Tensor:
    """Read little-endian float16 scales [n, 2k] as float32 [n, k]."""
    return raw.contiguous().view(torch.float16).float()


def _nibbles(raw: Tensor, run: int) -> Tensor:
    """Split bytes into low and high nibbles: per `run` bytes, first all low ones, then all high ones."""
    groups = raw.reshape(raw.shape[0], -1, 1, run)
    return torch.cat((groups & 15, groups >> 4), dim=2).reshape(raw.shape[0], -1)


def _bits(raw: Tensor) -> Tensor:
    """Spread 4 bytes into 32 bits of uint8, lowest first."""
    shifts = torch.arange(8, dtype=torch.uint8, device=raw.device)
    return (raw[:, :, None] >> shifts & 1).reshape(raw.shape[0], -1)


def _f32(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float32)


def _f16(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float16).float()


def _bf16(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.bfloat16).float()


def _q8_0(blocks: Tensor) -> Tensor:
    return _half(blocks[:, :2]) * blocks[:, 2:].view(torch.int8).float()


def _q4_0(blocks: Tensor) -> Tensor:
    return _half(blocks[:, :2]) * (_nibbles(blocks[:, 2:], 16).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    return _half(blocks[:, :2]) * _nibbles(blocks[:, 4:], 16).float() + _half(blocks[:, 2:4])


def _q5_0(blocks: Tensor) -> Tensor:
    q = _nibbles(blocks[:, 6:], 16) | _bits(blocks[:, 2:6]) << 4
    return _half(blocks[:, :2]) * (q.float() - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    q = _nibbles(blocks[:, 8:], 16) | _bits(blocks[:, 4:8]) << 4
    return _half(blocks[:, :2]) * q.float() + _half(blocks[:, 2:4])


def _mxfp4(blocks: Tensor) -> Tensor:
    exponents = blocks[:, :1].int()
    # 2^(e - 128), half of what the scale means: the numbers of the table are doubled.
    scales = torch.where(exponents < 2, 0x200000 << exponents, (exponents - 1) << 23).view(torch.float32)
    numbers = torch.tensor(_FP4, dtype=torch.float32, device=blocks.device)
    return scales * numbers[_nibbles(blocks[:, 1:], 16).int()]


def _k_scales(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Unpack 8 scales and 8 minima of 6 bits each from 12 bytes: low four plain, high four split over two places."""
    low_scale, low_min, rest = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    scale = torch.cat((low_scale & 63, rest & 15 | low_scale >> 2 & 48), dim=1)
    minimum = torch.cat((low_min & 63, rest >> 4 | low_min >> 2 & 48), dim=1)
    return scale.float(), minimum.float()


def _k_affine(blocks: Tensor, q: Tensor) -> Tensor:
    """Apply a super-block's two scales and its 8 sub-blocks' scales and minima to integers [n, 8, 32]."""
    scale, minimum = _k_scales(blocks[:, 4:16])
    d = (_half(blocks[:, :2]) * scale)[:, :, None]
    m = (_half(blocks[:, 2:4]) * minimum)[:, :, None]
    return (d * q.float() - m).reshape(blocks.shape[0], 256)


def _q4_k(blocks: Tensor) -> Tensor:
    return _k_affine(blocks, _nibbles(blocks[:, 16:], 32).reshape(-1, 8, 32))


def _q5_k(blocks: Tensor) -> Tensor:
    low = _nibbles(blocks[:, 48:], 32).reshape(-1, 8, 32)
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)[:, None]
    high = blocks[:, 16:48].unsqueeze(1) >> shifts & 1
    return _k_affine(blocks, low | high << 4)


def _q6_k(blocks: Tensor) -> Tensor:
    low = _nibbles(blocks[:, :128], 64).reshape(-1, 8, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3).reshape(-1, 8, 32)
    q = (low | high << 4).reshape(-1, 16, 16).float() - 32
    scale = _half(blocks[:, 208:]) * blocks[:, 192:208].contiguous().view(torch.int8).float()
    return (scale[:, :, None] * q).reshape(-1, 256)


_FORMATS: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "MXFP4": _mxfp4,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
