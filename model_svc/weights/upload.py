"""Weights from host memory, most often a mapped file, to a GPU at the speed of memory.

The driver copies from ordinary memory with one thread (5 to 8 GB/s), through pinned memory of its own. Here several
threads read into a small ring of pinned buffers, and the device fetches from one while the next is filled: no second
copy of the weights is ever in host memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model_svc.weights.mapped import FileReader

_CHUNK_BYTES = 32 << 20
_BUFFERS = 4


class Upload:
    """The way to one device (on a CPU it works too, for tests)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned = device.type == "cuda"
        self._buffers = [torch.empty(0, dtype=torch.uint8) for _ in range(_BUFFERS)]
        self._free: list[torch.cuda.Event | None] = [None] * _BUFFERS
        self._at = 0
        self._reader = FileReader()

    def fill(self, out: Tensor, source: Tensor) -> None:
        """Copy `source`, of any dtype, to `out` of the same shape on the device; queued when this returns."""
        if source.device.type != "cpu" or not out.is_contiguous():
            out.copy_(source)
            return
        flat, target = source.contiguous().view(-1), out.view(-1)
        for chunk, place in zip(self._chunks(flat), self._chunks(target, flat.element_size()), strict=True):
            buffer = self._next(chunk.nbytes)[: chunk.nbytes].view(chunk.dtype)
            if not self._reader.read_into(buffer, chunk):
                buffer.copy_(chunk)
            arrived = buffer if place.dtype == chunk.dtype else buffer.to(self._device, non_blocking=True)
            place.copy_(arrived, non_blocking=True)
            event = self._free[self._at]
            if event is not None:
                event.record()

    def _chunks(self, flat: Tensor, itemsize: int = 0) -> tuple[Tensor, ...]:
        return torch.split(flat, _CHUNK_BYTES // (itemsize or flat.element_size()))

    def _next(self, size: int) -> Tensor:
        """Return the buffer whose copy is longest under way, as bytes, once that is done; at least `size` of them.

        They grow as needed: whoever sends norms alone does not pin 128 MB, which takes 0.07 s.
        """
        self._at = (self._at + 1) % _BUFFERS
        event = self._free[self._at]
        if event is not None:
            event.synchronize()
        if self._buffers[self._at].nbytes < size:
            self._buffers[self._at] = torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)
        if self._pinned and event is None:
            self._free[self._at] = _event()
        return self._buffers[self._at]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]
