"""What enters and leaves the prefix cache, as a numbered log that the prefix desk can follow and find gaps in."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class KvEvent(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Blocks stored or evicted, names concatenated. `reset`: these are all there are."""

    sequence: int
    stored: bool
    hashes: bytes
    reset: bool = False


class KvEventLog:
    """Collect changes between two drains; neighbours of one kind become one event."""

    def __init__(self) -> None:
        self._sequence = 0
        self._log: list[tuple[bool, bytes]] = []
        self._reset: bytes | None = b""  # a new replica says first that it holds nothing

    def __bool__(self) -> bool:
        return bool(self._log) or self._reset is not None

    def stored(self, name: bytes) -> None:
        """Note that a block can now be hit."""
        self._log.append((True, name))

    def evicted(self, name: bytes) -> None:
        """Note that a block can no longer be hit."""
        self._log.append((False, name))

    def reset(self, names: Iterable[bytes]) -> None:
        """Start over with the full list; what was noted before is in it."""
        self._log.clear()
        self._reset = b"".join(names)

    def drain(self) -> list[KvEvent]:
        """Return the events since the last call, numbered without gaps, in the order they happened."""
        events: list[KvEvent] = []
        if self._reset is not None:
            events.append(self._event(True, self._reset, reset=True))
            self._reset = None
        run: list[bytes] = []
        for index, (stored, name) in enumerate(self._log):
            run.append(name)
            if index + 1 == len(self._log) or self._log[index + 1][0] != stored:
                events.append(self._event(stored, b"".join(run)))
                run.clear()
        self._log.clear()
        return events

    def _event(self, stored: bool, hashes: bytes, *, reset: bool = False) -> KvEvent:
        event = KvEvent(sequence=self._sequence, stored=stored, hashes=hashes, reset=reset)
        self._sequence += 1
        return event
