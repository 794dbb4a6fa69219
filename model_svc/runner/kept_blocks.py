"""Where the second tier's bytes lie in a host's memory: pinned slabs on a GPU, which copies reach past the processor.

A place holds one block: the keys and values of all layers (of this rank), one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from kernels.native import huge_pages
from model_svc.engine.plan import BlockCopy
from model_svc.runner.precision import RunnerConfigError

_SLAB_BYTES = 1 << 30  # torch rounds what it pins up to a power of two


class Store(Protocol):
    """Keeps blocks by place. Copies of a GPU are queued on the current stream."""

    num_places: int

    def put(self, copies: Sequence[BlockCopy], rows: Tensor) -> None:
        """Keep `rows` [n, bytes of a block], one for each copy."""
        ...

    def get(self, copies: Sequence[BlockCopy], rows: Tensor) -> None:
        """Fill `rows` [n, bytes of a block] with what is in the places."""
        ...

    def close(self) -> None:
        """Let go of the memory."""
        ...


class HostMemory:
    """Blocks in memory."""

    def __init__(self, num_places: int, block_bytes: int, *, pinned: bool) -> None:
        """Raises RunnerConfigError if there is not so much memory to pin."""
        self.num_places = num_places
        self._block_bytes = block_bytes
        self._each = max(1, _SLAB_BYTES // block_bytes)
        try:
            self._slabs = [
                self._slab(min(self._each, num_places - begin), pinned=pinned)
                for begin in range(0, num_places, self._each)
            ]
        except RuntimeError as error:
            message = f"kv_ram_gib: the host has no room to pin {num_places * block_bytes / (1 << 30):.1f} GiB"
            raise RunnerConfigError(f"{message}; lower it ({error})") from error

    def put(self, copies: Sequence[BlockCopy], rows: Tensor) -> None:
        """Keep blocks."""
        for copy, row in zip(copies, rows, strict=True):
            self._row(copy.place).copy_(row, non_blocking=True)

    def get(self, copies: Sequence[BlockCopy], rows: Tensor) -> None:
        """Bring blocks back."""
        for copy, row in zip(copies, rows, strict=True):
            row.copy_(self._row(copy.place), non_blocking=True)

    def close(self) -> None:
        """Let go of the slabs."""
        self._slabs.clear()

    def _slab(self, num_places: int, *, pinned: bool) -> Tensor:
        if pinned:
            return torch.empty(num_places, self._block_bytes, dtype=torch.uint8, pin_memory=True)
        return huge_pages.zeros(num_places * self._block_bytes).view(num_places, self._block_bytes)

    def _row(self, place: int) -> Tensor:
        slab, at = divmod(place, self._each)
        return self._slabs[slab][at]
