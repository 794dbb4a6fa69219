"""Random GGML blocks with sane scales, and what they stand for by another implementation than the one under test."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.native.packed_weight import FORMATS, PackedWeight
from model_svc.weights.stored.ggml import dequantize
from model_svc.weights.stored.ggml_types import BY_NAME

# Where the float16 scales of a block stand, in bytes.
_SCALES = {"Q6_K": (208, 210), "Q4_0": (0, 2), "Q5_0": (0, 2), "Q8_0": (0, 2)}


def random_blocks(format_name: str, rows: int, values: int) -> Tensor:
    """Return uint8 [rows, bytes]."""
    kind = BY_NAME[format_name]
    raw = torch.randint(0, 256, (rows, values // kind.values * kind.num_bytes), dtype=torch.uint8)
    if format_name == "MXFP4":  # a power of two
        raw.view(-1, kind.num_bytes)[:, 0] = torch.randint(117, 125, (raw.numel() // kind.num_bytes,))
        return raw
    begin, end = _SCALES.get(format_name, (0, 4))
    blocks = raw.view(-1, kind.num_bytes)
    scales = (torch.rand(blocks.shape[0], (end - begin) // 2) * 0.1 + 1e-3).half()
    blocks[:, begin:end] = scales.view(torch.uint8)
    return raw


def random_weight(format_name: str, rows: int, values: int) -> tuple[PackedWeight, Tensor]:
    """Return a packed weight and its numbers, float64 [rows, values]."""
    raw = random_blocks(format_name, rows, values)
    return PackedWeight([raw], format_name, values), dequantize(raw, format_name).double()


__all__ = ["FORMATS", "random_blocks", "random_weight"]
