"""Quantized weights in the tiles that native kernels read (src/tiles.h), repacked from GGML blocks without loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.native import huge_pages, record
from kernels.native.library import library

# As numbered in src/ops.h.
FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "Q4_K", "Q5_K", "Q6_K")
_K_FORMATS = FORMATS[6:]


def packable(format_name: str, num_inputs: int) -> bool:
    """Tell whether rows of this GGML format and length can be packed."""
    return format_name in FORMATS and num_inputs % (256 if format_name in _K_FORMATS else 32) == 0


class PackedWeight:
    """A weight [N, K] in tiles. `parts` are rows of GGML blocks, uint8 [rows, bytes], stacked along N."""

    def __init__(self, parts: Sequence[Tensor], format_name: str, num_inputs: int) -> None:
        if not packable(format_name, num_inputs):
            raise ValueError(f"{format_name} rows of {num_inputs} values cannot be packed")
        self.format = FORMATS.index(format_name)
        self.shape = (sum(part.shape[0] for part in parts), num_inputs)
        native = library()
        self.tiles = huge_pages.zeros(native.tiles_bytes(self.format, *self.shape))
        at = 0
        for part in parts:
            rows = part if part.stride(1) == 1 else part.contiguous()
            native.pack(
                self.format, rows.data_ptr(), rows.stride(0), rows.shape[0], num_inputs, at, self.tiles.data_ptr()
            )
            at += rows.shape[0]

    def rows(self, ids: Tensor, scale: float = 1.0) -> Tensor:
        """Return rows `ids` (int32 or int64) as floats times `scale`; an id out of range gives zeros."""
        out = record.empty((ids.shape[0], self.shape[1]))
        numbers = (ids.shape[0], *self.shape, self.format, int(ids.dtype == torch.int64))
        pointers = (ids.data_ptr(), self.tiles.data_ptr(), out.data_ptr())
        record.call([record.Record(record.EMBEDDING, numbers, pointers, (scale,))], (ids, self.tiles, out))
        return out

    def dequantize(self) -> Tensor:
        """Return all numbers, float32 [N, K]."""
        return self.rows(torch.arange(self.shape[0]))
