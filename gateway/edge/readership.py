"""Whether anybody reads what is made in the background: some answers end when nobody has for a while.

Events may be read at any edge. Each notes in the records of the requests that are read there that they are; the edge
that makes a response looks for new notes, and counts the time in which it saw none. It counts by its own clock, and
only time in which it looked: while it was stopped, the machine slept or the bus was away, nobody could have read. An
edge that takes a response over begins anew.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from gateway.edge.flight import Flight
from gateway.edge.identity import partition_of, root_of
from wire.bus import Bus
from wire.errors import UnreadError
from wire.messages import Job, Read, Request

_LATE = 2  # looks; who comes later than that was stopped


class _Awaited(msgspec.Struct):
    """A response that needs a reader."""

    job: Job
    flight: Flight
    limit_s: float
    read: Read | None = None
    unread_s: float = 0.0


class Readership:
    """What is read at one edge, and what is made there for readers. `look` wants to be called every `look_s`."""

    def __init__(self, bus: Bus, partitions: int, *, look_s: float) -> None:
        self._bus = bus
        self._partitions = partitions
        self._look_s = look_s
        self._readers: Counter[str] = Counter()
        self._were_read: set[str] = set()  # since the last look
        self._awaited: dict[str, _Awaited] = {}
        self._looked_at = time.monotonic()

    @contextmanager
    def reads(self, response_id: str) -> Iterator[None]:
        """Somebody reads the events of a response here, whether or not that needs a reader."""
        self._readers[response_id] += 1
        try:
            yield
        finally:
            self._were_read.add(response_id)
            self._readers -= Counter([response_id])

    @contextmanager
    def awaits(self, request: Request, job: Job, flight: Flight) -> Iterator[None]:
        """End a response that is made here with UnreadError when nobody has read it for as long as its client said."""
        if request.unread_limit_s:
            self._awaited[job.request_id] = _Awaited(job, flight, request.unread_limit_s)
        try:
            yield
        finally:
            self._awaited.pop(job.request_id, None)

    async def look(self) -> None:
        """Note who is read here, then count how long those that are made here were not. Raises HeadraceError."""
        now = time.monotonic()
        passed_s, self._looked_at = min(now - self._looked_at, _LATE * self._look_s), now
        read, self._were_read = {*self._readers, *self._were_read}, set()
        for response_id in read:
            partition = partition_of(root_of(response_id), self._partitions)
            await self._bus.update_record(partition, response_id, {"read": Read(at=time.time())})
        for awaited in list(self._awaited.values()):
            await self._count(awaited, passed_s)

    async def _count(self, awaited: _Awaited, passed_s: float) -> None:
        job = awaited.job
        newest = (await self._bus.record(job.partition, job.request_id, "read")).get("read")
        if newest != awaited.read:
            awaited.read, awaited.unread_s = newest, 0.0
            return
        awaited.unread_s += passed_s
        if awaited.unread_s >= awaited.limit_s:
            limit_s = f"{awaited.limit_s:g}"
            awaited.flight.fail(UnreadError(f"Nobody has read this response for {limit_s} seconds; it was cancelled."))
