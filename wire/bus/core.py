"""What every part of the bus stands on: the way to the servers, the limits, and what went wrong so far."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from wire import codec, topics
from wire.bus.options import BusOptions
from wire.bus.route import Route
from wire.messages import RECORD_FIELDS, Job

if TYPE_CHECKING:
    from wire.bus.neighbours import Neighbours


class Counts(msgspec.Struct):
    """What went wrong on this bus since it was opened; services export it as metrics."""

    num_lost: int = 0
    num_malformed: int = 0
    num_dead_letters: int = 0
    num_failures_dropped: int = 0


class Core:
    """Shared state of a Bus. `route` is open to desks that keep keys of their own."""

    def __init__(self, route: Route, options: BusOptions, neighbours: Neighbours) -> None:
        self.route = route
        self.neighbours = neighbours
        self.options = options
        self.counts = Counts()
        self._name = os.urandom(6).hex()
        self._sent = 0

    def _nonce(self) -> str:
        """Name one message, so that a repeat of it can be told from another one like it."""
        self._sent += 1
        return f"{self._name}{self._sent:x}"


def record_of(job: Job) -> str:
    """The key of a job's record."""
    return topics.job_record(job.partition, job.request_id)


def flat(fields: Mapping[str, Any]) -> list[bytes | str]:
    """Encode record fields as field, value, field, value."""
    words: list[bytes | str] = []
    for name, value in fields.items():
        if not isinstance(value, RECORD_FIELDS.get(name, ())):
            raise TypeError(f"{type(value).__name__} is no value for record field {name!r}")
        words += (name, codec.encode(value))
    return words


def fields_of(entry: list[bytes]) -> dict[bytes, bytes]:
    """Undo the flat form of a stream entry; a field without a value is dropped."""
    return dict(zip(entry[::2], entry[1::2], strict=False))


def decoded(names: Sequence[str], values: Sequence[bytes | None]) -> dict[str, Any]:
    """Decode record fields; missing ones are absent."""
    pairs = zip(names, values, strict=True)
    return {name: codec.decode(raw, RECORD_FIELDS[name]) for name, raw in pairs if raw is not None}
