"""The way of small arrays to the device and back without a wait: pinned memory, asynchronous copies, a ring.

A copy from ordinary memory makes the host wait for the device, a step long; so nothing here copies from it. Buffers
used in each step form a ring, one more than steps can be in flight, and an event tells when one is free again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor


def send(array: np.ndarray, device: torch.device) -> Tensor:
    """Return `array` on the device; on a GPU the copy is queued, and the pinned memory goes back when it is done."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def fetch(tensor: Tensor) -> Tensor:
    """Return `tensor` in pinned memory of the host; its content is there once the device has come so far."""
    return tensor.to("cpu", non_blocking=True)


def on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Queue what is launched inside on `stream`; None: where it would go anyway."""
    return torch.cuda.stream(stream) if stream is not None else nullcontext()


def new_event(*, timing: bool = False) -> torch.cuda.Event:
    """Return an event of the current device."""
    return torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]


class Timers:
    """Timing events, taken in turn: making two of them took 0.1 ms of a first token."""

    def __init__(self, count: int) -> None:
        self._events = [new_event(timing=True) for _ in range(count)]
        self._at = 0
        for event in self._events:
            event.record()  # only now the device makes it

    def now(self) -> torch.cuda.Event:
        """Record the next event on the current stream; it holds until all others have been taken."""
        self._at = (self._at + 1) % len(self._events)
        event = self._events[self._at]
        event.record()
        return event


class PinnedRing:
    """Pinned int32 buffers, taken in turn: copies out of one may be under way while the next is filled."""

    def __init__(self, size: int, num_buffers: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._host = [torch.empty(size, dtype=torch.int32, pin_memory=pinned) for _ in range(num_buffers)]
        self._arrays = [buffer.numpy() for buffer in self._host]
        self._read = [new_event() if pinned else None for _ in range(num_buffers)]
        self._at = 0

    def next(self) -> tuple[Tensor, np.ndarray]:
        """Return the next buffer and what fills it; waits only if the copies out of it, a ring ago, are not done."""
        self._at = (self._at + 1) % len(self._host)
        event = self._read[self._at]
        if event is not None:
            event.synchronize()
        return self._host[self._at], self._arrays[self._at]

    def done(self) -> None:
        """Note that all copies out of the buffer are queued."""
        event = self._read[self._at]
        if event is not None:
            event.record()


class Staging:
    """A ring of buffers that all go to one place on the device (graphs read from fixed addresses)."""

    def __init__(self, size: int, num_buffers: int, device: torch.device) -> None:
        self._ring = PinnedRing(size, num_buffers, device)
        self._buffer, _ = self._ring.next()
        self.device = torch.empty(size, dtype=torch.int32, device=device)

    def array(self, size: int) -> np.ndarray:
        """Return the next buffer to fill."""
        self._buffer, array = self._ring.next()
        return array[:size]

    def send(self, size: int) -> None:
        """Queue the copy of what was filled."""
        self.device[:size].copy_(self._buffer[:size], non_blocking=True)
        self._ring.done()


class Returns:
    """A ring of pinned `lines` [num_lines, size] int32 in which steps leave their tokens, written there by a kernel.

    A copy behind it takes 9 us more of a token (H200, one sequence). Each step takes a line when it begins, and what it
    leaves holds until the ring has gone round, read or not.
    """

    def __init__(self, size: int, num_lines: int, device: torch.device) -> None:
        self.lines = torch.zeros(num_lines, size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._at = 0

    def next(self) -> int:
        """Return the number of the next line."""
        self._at = (self._at + 1) % len(self.lines)
        return self._at

    def keep(self, values: Tensor, line: int) -> Tensor:
        """Queue a copy of `values` to a line, where no kernel has written; returns where they will be."""
        place = self.lines[line, : len(values)]
        place.copy_(values, non_blocking=True)
        return place
