"""The events of a response that is made in the background, in Redis, so that any edge can send them from any point on.

One stream per response, one entry per block of events. An entry says which number comes next and how many tokens have
been told of, so that another edge can go on writing. Only who knows the newest number may append: an edge that was
thought dead and comes back finds that it is not the writer any more. The log is bounded by the response's deadline
(the writer pauses between blocks) and goes some time after its last entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from wire import topics
from wire.bus.route import Route
from wire.bus.scripts import Script

_PAGE = 256

_TEXT = """
-- KEYS log, record. ARGV first number, next number, tokens, data, last ('1'), ttl ms.
-- 1 appended (or was by an earlier try), 0 somebody else writes, or the response was deleted.
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local number, data = '0', ''
if newest then number, data = newest[2][2], newest[2][6] end
if number ~= ARGV[1] then return number == ARGV[2] and data == ARGV[4] and 1 or 0 end
redis.call('XADD', KEYS[1], '*', 'n', ARGV[2], 't', ARGV[3], 'd', ARGV[4], 'z', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[6])
return 1
"""
APPEND = Script(_TEXT, hashlib.sha1(_TEXT.encode(), usedforsecurity=False).hexdigest())


class Entry(NamedTuple):
    """Events in a row. `number` is that of the event after them, `num_tokens` counts what they have told of."""

    entry_id: str
    number: int
    num_tokens: int
    data: bytes
    last: bool

    def events(self, after: int = -1) -> Iterator[bytes]:
        """Yield the events with a number above `after`, each with the blank line behind it."""
        events = self.data.split(b"\n\n")[:-1]  # JSON holds no line end
        first = self.number - len(events)
        for at, event in enumerate(events):
            if first + at > after:
                yield event + b"\n\n"


class EventLog:
    """The log of one response."""

    def __init__(self, route: Route, partition: int, response_id: str, *, ttl_s: float) -> None:
        self._route = route
        self._key = topics.events(partition, response_id)
        self._record = topics.job_record(partition, response_id)
        self._ttl_ms = int(ttl_s * 1000)

    async def append(self, data: bytes, *, first: int, number: int, num_tokens: int, last: bool = False) -> bool:
        """Append events that are numbered from `first` up to below `number`; False if we are not the writer any more.

        Raises OverloadedError when the bus is full.
        """
        arguments = (first, number, num_tokens, data, int(last), self._ttl_ms)
        return bool(await self._route.run(APPEND, (self._key, self._record), *arguments))

    async def read(self, after: str = "-") -> list[Entry]:
        """Return entries after the one named, oldest first; not always all there are."""
        start = after if after == "-" else f"({after}"
        return [
            _entry(raw) for raw in await self._route.call(self._key, "XRANGE", self._key, start, "+", "COUNT", _PAGE)
        ]

    async def read_all(self) -> list[Entry]:
        """Return all entries."""
        entries = await self.read()
        while entries and (more := await self.read(entries[-1].entry_id)):
            entries += more
        return entries

    async def newest(self) -> Entry | None:
        """Return the newest entry, if there is any."""
        found = await self._route.call(self._key, "XREVRANGE", self._key, "+", "-", "COUNT", 1)
        return _entry(found[0]) if found else None


def _entry(raw: list[object]) -> Entry:
    entry_id, fields = raw
    assert isinstance(entry_id, bytes) and isinstance(fields, list)
    _, number, _, num_tokens, _, data, _, last = fields
    return Entry(entry_id.decode(), int(number), int(num_tokens), data, last == b"1")
