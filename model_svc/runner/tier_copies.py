"""Copies blocks between a KV cache and the second tier, as a step's plan says, before the step.

All layers of a block cross together, as a row of bytes. On a GPU the rows lie in a buffer on the card: the steps'
stream gathers into it in microseconds and goes on, a side stream takes the rows to the host; the other way the steps'
stream waits until the rows have come. On both streams everything keeps the order of the plans, so no place is read
before it was written, and no block overwritten before it was read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from kernels.kv_copy import gather_blocks, scatter_blocks
from model_svc.engine.plan import BlockCopy, RunnerInfo, StepPlan
from model_svc.runner.kept_blocks import Store
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.staging import on_stream, send

_BUFFER_BYTES = 64 << 20  # 1.3 ms of PCIe 5: longer copies overlap with gathering the next rows anyway
_TRIED = 8  # blocks that are copied to see how long it takes,
_TRIALS = 5  # and how often: the shortest counts, as a busy machine makes others as long as it likes


class TierCopies:
    """Reads and writes blocks of a cache beside the steps queued on `stream` (None: no queue)."""

    def __init__(
        self, cache: KvCache, store: Store, stream: torch.cuda.Stream | None = None,
        on_load: Callable[[torch.cuda.Event], None] | None = None,
    ) -> None:  # fmt: skip
        """`on_load` hears by which event of the device loaded blocks are in the cache."""
        self._store = store
        self._stream = stream
        self._on_load = on_load
        self._tensors = [whole(tensor) for layer in cache.layers for tensor in layer]
        self._device = self._tensors[0].device
        self._side = torch.cuda.Stream(self._device) if stream is not None else None  # type: ignore[no-untyped-call]
        self._rows = rows_at_once(cache)
        size = (self._rows, bytes_of_block(cache))
        self._out = torch.empty(size, dtype=torch.uint8, device=self._device)
        # Where nothing is queued one buffer serves both ways.
        self._in = torch.empty_like(self._out) if stream is not None else self._out
        self._drained: torch.cuda.Event | None = None  # the rows of the last save have left
        self._scattered: torch.cuda.Event | None = None  # those of the last load, too

    def run(self, plan: StepPlan) -> None:
        """Make a plan's copies. What it computes is to be queued behind them."""
        for part in self._pieces(plan.saves):
            self._save(part)
        for part in self._pieces(plan.loads):
            self._load(part)

    def time_ms(self) -> float:
        """Return how long a block takes from the tier to the device, by trials; of what is in it nothing changes."""
        count = min(_TRIED, self._rows, self._store.num_places)
        copies = [BlockCopy(block=0, place=place, name=b"") for place in range(count)]
        with on_stream(self._side):
            trials = []
            for _ in range(_TRIALS):  # the first one warms up
                started = time.perf_counter()
                self._store.get(copies, self._in[:count])
                self._wait()
                trials.append(time.perf_counter() - started)
        return min(trials) * 1e3 / max(1, count)

    def close(self) -> None:
        """Wait for the copies under way, and let the store go."""
        self._wait()
        self._store.close()

    def _save(self, copies: Sequence[BlockCopy]) -> None:
        rows = self._out[: len(copies)]
        with on_stream(self._stream):
            if self._stream is not None and self._drained is not None:
                self._stream.wait_event(self._drained)
            ids = self._ids(copies)
            for tensor, part in self._parts(rows):
                gather_blocks(tensor, ids, out=part)
        self._then(self._stream, self._side)
        with on_stream(self._side):
            self._store.put(copies, rows)
        if self._side is not None:
            self._drained = self._side.record_event()

    def _load(self, copies: Sequence[BlockCopy]) -> None:
        rows = self._in[: len(copies)]
        if self._side is not None and self._scattered is not None:
            self._side.wait_event(self._scattered)
        with on_stream(self._side):
            self._store.get(copies, rows)
        self._then(self._side, self._stream)
        with on_stream(self._stream):
            ids = self._ids(copies)
            for tensor, part in self._parts(rows):
                scatter_blocks(part, tensor, ids)
        if self._stream is not None:
            self._scattered = self._stream.record_event()
            if self._on_load is not None:
                self._on_load(self._scattered)

    def _pieces(self, copies: Sequence[BlockCopy]) -> Iterator[Sequence[BlockCopy]]:
        for at in range(0, len(copies), self._rows):
            yield copies[at : at + self._rows]

    def _ids(self, copies: Sequence[BlockCopy]) -> Tensor:
        return send(np.array([copy.block for copy in copies], dtype=np.int64), self._device)

    def _parts(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each tensor of the cache with its columns of `rows`, in the shape of its blocks."""
        at = 0
        for tensor in self._tensors:
            size = tensor[0].nbytes
            yield tensor, rows[:, at : at + size].view(tensor.dtype).view(len(rows), *tensor.shape[1:])
            at += size

    def _wait(self) -> None:
        if self._side is not None:
            self._side.synchronize()

    @staticmethod
    def _then(first: torch.cuda.Stream | None, second: torch.cuda.Stream | None) -> None:
        if first is not None and second is not None:
            second.wait_event(first.record_event())


def with_tier(info: RunnerInfo, store: Store | None, copies: TierCopies | None) -> RunnerInfo:
    """Return what the engine must know of a runner that has a second tier, or none."""
    if store is None or copies is None:
        return info
    return msgspec.structs.replace(info, num_tier_blocks=store.num_places, tier_block_ms=copies.time_ms())


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor of a cache [N, ...] such that each of its blocks is contiguous."""
    return tensor if tensor[0].is_contiguous() else tensor.transpose(1, 2)


def bytes_of_block(cache: KvCache) -> int:
    """Return how much a block takes, keys and values of all layers."""
    return sum(tensor[0].nbytes for layer in cache.layers for tensor in layer)


def rows_at_once(cache: KvCache) -> int:
    """Return how many blocks a buffer holds."""
    return max(1, _BUFFER_BYTES // bytes_of_block(cache))


def buffer_bytes(block_bytes: int) -> int:
    """Return how much of a card's memory the copies of blocks so large take."""
    return 2 * max(1, _BUFFER_BYTES // block_bytes) * block_bytes
