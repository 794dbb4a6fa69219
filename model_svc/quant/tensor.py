"""A weight as it lies in the checkpoint: blocks of small integers with their scales, not yet numbers.

The bytes stay reachable, so that a quantization method may compute on them; the float32 exact mode dequantizes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model_svc.quant.ggml import dequantize
from model_svc.quant.ggml_types import GgmlType


class QuantizedTensor:
    """Rows of GGML blocks: `blocks` is uint8 [rows, bytes a row], `shape` what it stands for, `type` the format."""

    def __init__(self, blocks: Tensor, shape: tuple[int, ...], type: GgmlType) -> None:  # noqa: A002 - the field's word
        self.blocks = blocks
        self.shape = torch.Size(shape)
        self.type = type

    def rows(self, index: Tensor | slice) -> QuantizedTensor:
        """Return some rows, in any order (a shard, an un-permuted projection): blocks never span rows."""
        blocks = self.blocks[index]
        return QuantizedTensor(blocks, (blocks.shape[0], *self.shape[1:]), self.type)

    def columns(self, start: int, stop: int) -> QuantizedTensor:
        """Return a range of columns. Raises ValueError if it does not fall on block borders."""
        values, width = self.type.values, self.type.num_bytes
        if start % values or stop % values:
            raise ValueError(f"columns {start}..{stop} cut a block of {values} values")
        blocks = self.blocks[:, start // values * width : stop // values * width]
        return QuantizedTensor(blocks, (self.shape[0], stop - start), self.type)

    def dequantize(self, dtype: torch.dtype = torch.float32, out: Tensor | None = None) -> Tensor:
        """Return the numbers the blocks stand for (computed in float32, then rounded), into `out` if given."""
        if out is None:
            out = torch.empty(self.shape, dtype=dtype, device=self.blocks.device)
        rows = out.view(self.blocks.shape[0], -1)
        # 1 MiB of blocks at a time: the float32 temporaries stay in cache and peak memory small.
        step = max((1 << 20) // max(self.blocks.shape[1], 1), 1)
        for start in range(0, rows.shape[0], step):
            rows[start : start + step] = dequantize(self.blocks[start : start + step], self.type.name)
        return out
