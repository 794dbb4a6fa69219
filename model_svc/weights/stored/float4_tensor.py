"""A weight in MXFP4 as gpt-oss's checkpoints hold it: 4 bit floats and powers of two, apart from one another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from model_svc.weights.stored.block_tensor import BlockTensor
from model_svc.weights.stored.ggml_types import BY_NAME
from model_svc.weights.stored.tensor import QuantizedTensor

GROUP, BYTES = 32, 16  # inputs that share a scale, and the bytes that hold them
_LOW = 0x0F0F0F0F0F0F0F0F


class Float4Tensor(QuantizedTensor):
    """Rows of 4 bit floats, the sign highest: `packed` uint8 [rows, groups, 16], of each byte the low four bits first.

    `exponents` uint8 [rows, groups]: a group's scale is 2^(exponent - 127).
    """

    def __init__(self, packed: Tensor, exponents: Tensor) -> None:
        self.packed = packed
        self.exponents = exponents
        self.shape = torch.Size((packed.shape[0], packed.shape[1] * GROUP))

    def rows(self, index: Tensor | slice) -> Float4Tensor:
        """Return some rows."""
        return Float4Tensor(self.packed[index], self.exponents[index])

    def columns(self, start: int, stop: int) -> Float4Tensor:
        """Return a range of columns. Raises ValueError if it does not fall on borders of groups."""
        if start % GROUP or stop % GROUP:
            raise ValueError(f"columns {start}..{stop} cut a block of {GROUP} values")
        groups = slice(start // GROUP, stop // GROUP)
        return Float4Tensor(self.packed[:, groups], self.exponents[:, groups])

    def moved(self, move: Callable[[Tensor], Tensor]) -> Float4Tensor:
        """Return the same on another device."""
        return Float4Tensor(move(self.packed), move(self.exponents))

    def piece(self, rows: slice) -> Tensor:
        """Return the float32 numbers of some rows."""
        return self.rows(rows).as_blocks().piece(slice(None))

    @property
    def stored(self) -> Tensor:
        """The floats."""
        return self.packed.flatten(1)

    def as_blocks(self) -> BlockTensor:
        """Return GGML's blocks of the same numbers."""
        # A byte of GGML's holds numbers n and n + 16, one of a checkpoint 2n and 2n + 1. Eight bytes at a time.
        words = self.packed.clone(memory_format=torch.contiguous_format).view(torch.int64)
        first, second = words[:, :, :1], words[:, :, 1:]
        even = first & _LOW | (second & _LOW) << 4
        odd = first >> 4 & _LOW | second & ~_LOW
        pairs = even.view(torch.uint8).short() | odd.view(torch.uint8).short() << 8
        raw = torch.cat((self.exponents.unsqueeze(2), pairs.view(torch.uint8)), 2)
        return BlockTensor(raw.view(len(raw), -1), self.shape, BY_NAME["MXFP4"])
