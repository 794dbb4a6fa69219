"""A weight as it lies in the checkpoint: small integers (or 8 bit floats) with their scales, not yet numbers.

The bytes stay reachable, so that a quantization method may compute on them; the float32 exact mode dequantizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

_PIECE_BYTES = 1 << 20


class QuantizedTensor(ABC):
    """What all forms share: `shape` is that of the numbers they stand for."""

    shape: torch.Size

    @property
    def order(self) -> Tensor | None:
        """The order of inputs in which packed forms have them; None: as they are."""
        return None

    @abstractmethod
    def rows(self, index: Tensor | slice) -> Self:
        """Return some rows, in any order (a shard, an un-permuted projection)."""

    @abstractmethod
    def columns(self, start: int, stop: int) -> Self:
        """Return a range of columns. Raises ValueError if that would cut what is stored as one."""

    @abstractmethod
    def moved(self, move: Callable[[Tensor], Tensor]) -> Self:
        """Return the same on another device: `move` takes there each tensor that it is made of."""

    @abstractmethod
    def piece(self, rows: slice) -> Tensor:
        """Return the float32 numbers of some rows [n, values of a row]."""

    @property
    @abstractmethod
    def stored(self) -> Tensor:
        """The stored values, a row for each row of numbers."""

    def dequantize(self, dtype: torch.dtype = torch.float32, out: Tensor | None = None) -> Tensor:
        """Return the numbers it stands for (computed in float32, then rounded), into `out` if given."""
        stored = self.stored
        if out is None:
            out = torch.empty(self.shape, dtype=dtype, device=stored.device)
        rows = out.view(stored.shape[0], -1)
        # 1 MiB at a time: the float32 temporaries stay in cache and peak memory small.
        step = max(_PIECE_BYTES // max(stored.shape[1] * stored.element_size(), 1), 1)
        for start in range(0, rows.shape[0], step):
            rows[start : start + step] = self.piece(slice(start, start + step))
        return out
