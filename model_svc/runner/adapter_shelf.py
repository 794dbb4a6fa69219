"""The adapters that come and go while a runner works: read in a thread, put into their place piece by piece.

No step waits: files are read beside the steps, and between two of them at most `_PIECE_BYTES` are copied to a place of
which no sequence knows yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from model_svc.layers.adapters import AdapterRoom, Adapters, Part
from model_svc.weights.adapter_copy import copied
from model_svc.weights.errors import CheckpointError
from wire.adapters import name_with_digest

_PIECE_BYTES = 4 << 20
_SLACK = 4  # a file may hold float32 for what is kept in 8 bits of it
_HEADER_BYTES = 1 << 20

_Read = tuple[list[Part], str]


class AdapterShelf:
    """The places for such adapters, one load at a time. Implements the engine's AdapterPlaces protocol.

    `numbers` are those of all adapters by name, ours among them. Copies to the device are made `inside` a context.
    """

    def __init__(
        self,
        adapters: Adapters | None,
        numbers: dict[str, int],
        inside: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._inside = inside
        self._adapters = adapters
        self._numbers = numbers
        room = adapters.room if adapters is not None else AdapterRoom()
        first = len(numbers) + 1
        self._own = range(first, first + room.count)
        self._thread: ThreadPoolExecutor | None = None
        self._name = ""
        self._reading: Future[_Read] | None = None
        self._digest = ""
        self._putting: Iterator[None] | None = None
        self._number = 0
        self._is_new = False  # what was loaded last

    @property
    def count(self) -> int:
        """How many there is room for."""
        return len(self._own)

    def begin(self, name: str, directory: str) -> None:
        """Begin to read an adapter. Raises CheckpointError where there is no room for it."""
        taken = set(self._numbers.values())
        free = [number for number in self._own if number not in taken]
        if not free:
            raise CheckpointError(Path(directory).name, f"max_adapters is {self.count}, and so many are here")
        assert self._adapters is not None
        self._name, self._number, self._is_new = name, free[0], False
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="adapters")
        self._reading = self._thread.submit(_read, self._adapters, name, Path(directory))

    @property
    def is_reading(self) -> bool:
        """Tell whether `advance` would do nothing yet."""
        return self._reading is not None and not self._reading.done()

    def advance(self) -> str | None:
        """Do a part of what is left; returns the digest when the adapter can be asked for. Raises CheckpointError."""
        if self._reading is not None:
            if not self._reading.done():
                return None
            reading, self._reading = self._reading, None
            parts, self._digest = reading.result()
            known = name_with_digest(self._name, self._digest) in self._numbers
            self._putting = iter(()) if known else _put(parts, self._number)
        if self._putting is not None:
            with torch.inference_mode(), self._inside():
                more = next(self._putting, self) is not self
            if more:
                return None
            self._putting = None
            name = name_with_digest(self._name, self._digest)
            self._is_new = name not in self._numbers
            self._numbers.setdefault(name, self._number)
        return self._digest

    def abandon(self) -> None:
        """Forget the load under way, or just behind us: another rank cannot end it."""
        self._reading = self._putting = None
        if self._is_new:
            self.drop(name_with_digest(self._name, self._digest))

    def drop(self, name: str) -> None:
        """Give up the place of an adapter that no sequence has any more."""
        if self._numbers.get(name) in self._own:
            del self._numbers[name]

    def close(self) -> None:
        """Wait for what is read."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)


def _read(adapters: Adapters, name: str, directory: Path) -> _Read:
    try:
        with copied(name, directory, _SLACK * adapters.bytes_each + _HEADER_BYTES) as (checkpoint, digest):
            return adapters.read(checkpoint), digest
    except CheckpointError:
        raise
    except Exception as error:  # whatever is wrong with somebody's files, answers go on
        raise CheckpointError(directory.name[:80], f"cannot be read: {type(error).__name__}: {error}") from error


def _put(parts: list[Part], number: int) -> Iterator[None]:
    """Put an adapter into its place; pauses behind each piece."""
    num_bytes = 0
    for part in parts:
        part.put(number)
        num_bytes += part.num_bytes
        if num_bytes >= _PIECE_BYTES:
            num_bytes = 0
            yield
