"""A weight in GGML blocks, as GGUF files hold it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from model_svc.weights.stored.ggml import dequantize
from model_svc.weights.stored.ggml_types import GgmlType
from model_svc.weights.stored.tensor import QuantizedTensor


class BlockTensor(QuantizedTensor):
    """Rows of GGML blocks: `blocks` is uint8 [rows, bytes a row], `shape` what it stands for, `type` the format."""

    def __init__(self, blocks: Tensor, shape: tuple[int, ...], type: GgmlType) -> None:  # noqa: A002 - the field's word
        self.blocks = blocks
        self.shape = torch.Size(shape)
        self.type = type

    def rows(self, index: Tensor | slice) -> BlockTensor:
        """Return some rows: blocks never span rows."""
        blocks = self.blocks[index]
        return BlockTensor(blocks, (blocks.shape[0], *self.shape[1:]), self.type)

    def columns(self, start: int, stop: int) -> BlockTensor:
        """Return a range of columns. Raises ValueError if it does not fall on block borders."""
        values, width = self.type.values, self.type.num_bytes
        if start % values or stop % values:
            raise ValueError(f"columns {start}..{stop} cut a block of {values} values")
        blocks = self.blocks[:, start // values * width : stop // values * width]
        return BlockTensor(blocks, (self.shape[0], stop - start), self.type)

    def moved(self, move: Callable[[Tensor], Tensor]) -> BlockTensor:
        """Return the same on another device."""
        return BlockTensor(move(self.blocks), self.shape, self.type)

    def piece(self, rows: slice) -> Tensor:
        """Return the float32 numbers of some rows."""
        return dequantize(self.blocks[rows], self.type.name)

    @property
    def stored(self) -> Tensor:
        """The blocks."""
        return self.blocks
