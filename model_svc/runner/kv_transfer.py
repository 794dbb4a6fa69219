"""Copies whole blocks between a KV cache and bytes: for each layer the keys of all blocks, then their values.

Of a layer of latents these are all that there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels.kv_copy import gather_blocks, scatter_blocks
from model_svc.engine.kv_layout import KvLayout
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.staging import on_stream


def layout_of(cache: KvCache) -> KvLayout:
    """Return the form of a cache's blocks."""
    tensors = [tensor for layer in cache.paged for tensor in layer]
    return KvLayout(
        dtype=str(tensors[0].dtype).removeprefix("torch."),
        element_bytes=tensors[0].element_size(),
        block_size=cache.block_size,
        heads_first=not tensors[0][0].is_contiguous(),
        shapes=tuple((one.shape[2], one.shape[3]) for one in tensors),
        device=tensors[0].device.type,
    )


class KvTransfer:
    """Reads and writes blocks of a cache beside the steps that a runner has queued on `stream` (None: no queue).

    Blocks that are read are named, so no step in flight writes to them. Blocks that are written may have belonged to a
    sequence of which a step is still in flight, so the writing queues up behind it.
    """

    def __init__(self, cache: KvCache, stream: torch.cuda.Stream | None = None) -> None:
        self._cache = cache
        self._stream = stream
        device = cache.paged[0][0].device
        self._device = device
        self._side = torch.cuda.Stream(device) if stream is not None else None  # type: ignore[no-untyped-call]
        self._written: torch.cuda.Event | None = None  # of the last writing, whose blocks may be asked for at once

    @torch.inference_mode()
    def read(self, blocks: Sequence[int], target: memoryview) -> None:
        """Copy blocks out; they are in `target` when this returns. It does not wait for steps."""
        with on_stream(self._side):
            if self._side is not None and self._written is not None:
                self._side.wait_event(self._written)
            ids = torch.tensor(blocks, dtype=torch.int64, device=self._device)
            for tensor, part in self._parts(target, len(blocks)):
                if self._device.type == "cpu":
                    gather_blocks(tensor, ids, out=part)
                else:
                    part.copy_(gather_blocks(tensor, ids))
        if self._side is not None:
            self._side.synchronize()

    @torch.inference_mode()
    def write(self, blocks: Sequence[int], source: memoryview, places: Sequence[int], num_blocks: int) -> None:
        """Copy the blocks at `places` (ascending) of the `num_blocks` in `source` in; then `source` is free."""
        rows = torch.tensor(places, dtype=torch.int64) if len(places) < num_blocks else None
        with on_stream(self._side):
            ids = torch.tensor(blocks, dtype=torch.int64, device=self._device)
            parts = [
                (tensor, (part if rows is None else part[rows]).to(self._device))
                for tensor, part in self._parts(source, num_blocks)
            ]
        if self._side is not None:
            self._side.synchronize()
        with on_stream(self._stream):
            for tensor, part in parts:
                scatter_blocks(part, tensor, ids)
                if self._stream is not None:
                    part.record_stream(self._stream)
            if self._stream is not None:
                ids.record_stream(self._stream)
                self._written = self._stream.record_event()

    def wrote(self, event: torch.cuda.Event) -> None:
        """Hear that others wrote to blocks, too, and that they are there with `event`."""
        self._written = event

    def _parts(self, view: memoryview, num_blocks: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each tensor of the cache, its blocks contiguous, with its part of the bytes."""
        raw, at = torch.frombuffer(view, dtype=torch.uint8), 0
        for layer in self._cache.paged:
            for tensor in layer:
                whole = tensor if tensor[0].is_contiguous() else tensor.transpose(1, 2)
                shape = (num_blocks, *whole.shape[1:])
                size = num_blocks * whole[0].numel() * whole.element_size()
                yield whole, raw[at : at + size].view(whole.dtype).view(shape)
                at += size
        assert at == len(raw), "the bytes are not those of so many blocks"
