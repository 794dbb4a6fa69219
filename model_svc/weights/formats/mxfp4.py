"""MXFP4 as gpt-oss publishes it: 4 bit floats, a power of two for each 32 inputs, all experts in one tensor.

Source: transformers, `integrations/mxfp4.py`: `<name>_blocks` uint8 [experts, out, in / 32, 16], of each byte the low
four bits first; `<name>_scales` uint8 [experts, out, in / 32], exponents plus 127. GGML's blocks hold the same, with
other neighbours in a byte, so nothing is rounded on the way.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import torch
from torch import Tensor

from model_svc.weights.formats.fields import Fields
from model_svc.weights.stored.block_tensor import BlockTensor
from model_svc.weights.stored.ggml_types import BY_NAME

BLOCK, BYTES = 32, 16  # inputs of a block, and the bytes that hold them
_LOW = 0x0F0F0F0F0F0F0F0F


class Mxfp4:
    """What the config says: which modules are not stored so."""

    name = "MXFP4, 4 bit floats, blocks of 32"

    def __init__(self, fields: Fields) -> None:
        """Raise CheckpointError for names that are none."""
        self._ignored = fields.names("modules_to_not_convert")

    def ignores(self, module: str) -> bool:
        """Tell whether the config says that a module, or one that it is part of, is not stored so."""
        return any(fnmatchcase(module, end) for pattern in self._ignored for end in (pattern, f"{pattern}.*"))

    def read(self, codes: Tensor, scales: Tensor) -> BlockTensor:
        """Make a weight of codes [out, in / 32, 16] and scales [out, in / 32]."""
        out, groups, _ = codes.shape
        # A byte of GGML's holds numbers n and n + 16, one of a checkpoint 2n and 2n + 1. Eight bytes at a time.
        words = codes.clone(memory_format=torch.contiguous_format).view(torch.int64)
        first, second = words[:, :, :1], words[:, :, 1:]
        even = first & _LOW | (second & _LOW) << 4
        odd = first >> 4 & _LOW | second & ~_LOW
        pairs = even.view(torch.uint8).short() | odd.view(torch.uint8).short() << 8
        raw = torch.cat((scales.unsqueeze(2), pairs.view(torch.uint8)), 2)
        return BlockTensor(raw.view(out, -1), (out, groups * BLOCK), BY_NAME["MXFP4"])
