"""The events of a response that is made in the background, in Redis, so that any edge can send them from any point on.

One stream per response, one entry per block of events. An entry says which number comes next, how many tokens have been
told of and who wrote it, so that another edge can go on writing. It begins with an entry of its own without events:
from then on an edge that was thought dead and comes back is refused. The log is bounded by the response's deadline
(the writer pauses between blocks) and goes some time after its last entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from wire import topics
from wire.bus.route import PASSING, Route
from wire.bus.script import Script

START = "0"
"""The place before the first entry."""

_PAGE = 256


APPEND = Script("""
-- KEYS log, record. ARGV writer, first number, next number, tokens, data, last ('1'), ttl ms.
-- 1 appended (or was by an earlier try), 0 somebody else writes, or the response was deleted.
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local number, data, writer = '0', '', ARGV[1]
if newest then number, data, writer = newest[2][2], newest[2][6], newest[2][10] end
if writer ~= ARGV[1] then return 0 end
if number ~= ARGV[2] then return number == ARGV[3] and data == ARGV[5] and 1 or 0 end
redis.call('XADD', KEYS[1], '*', 'n', ARGV[3], 't', ARGV[4], 'd', ARGV[5], 'z', ARGV[6], 'w', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[7])
return 1
""")

TAKE = Script("""
-- KEYS log, record. ARGV writer, ttl ms. {next number, tokens told of}, or nothing: it is complete, or gone.
if redis.call('EXISTS', KEYS[2]) == 0 then return false end
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local number, tokens = '0', '0'
if newest then
  if newest[2][8] == '1' then return false end
  number, tokens = newest[2][2], newest[2][4]
end
redis.call('XADD', KEYS[1], '*', 'n', number, 't', tokens, 'd', '', 'z', '0', 'w', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {number, tokens}
""")


class Entry(NamedTuple):
    """Events in a row. `number` is that of the event after them, `num_tokens` counts what they have told of."""

    entry_id: str
    number: int
    num_tokens: int
    data: bytes
    last: bool

    def events(self, after: int = -1, *, with_ids: bool = False) -> Iterator[bytes]:
        """Yield the events with a number above `after`, each with the blank line behind it; the number is its id."""
        events = self.data.split(b"\n\n")[:-1]  # JSON holds no line end
        first = self.number - len(events)
        for at, event in enumerate(events):
            if first + at > after:
                yield (b"id: %d\n" % (first + at) if with_ids else b"") + event + b"\n\n"


class EventLog:
    """The log of one response, in the hands of one reader or `writer`."""

    def __init__(self, route: Route, partition: int, response_id: str, *, writer: str, ttl_s: float) -> None:
        self._writer = writer
        self._route = route
        self._key = topics.events(partition, response_id)
        self._record = topics.job_record(partition, response_id)
        self._ttl_ms = int(ttl_s * 1000)

    async def append(self, data: bytes, *, first: int, number: int, num_tokens: int, last: bool = False) -> bool:
        """Append events that are numbered from `first` up to below `number`; False if we are not the writer any more.

        Raises OverloadedError when the bus is full.
        """
        arguments = (self._writer, first, number, num_tokens, data, int(last), self._ttl_ms)
        return bool(await self._route.run(APPEND, (self._key, self._record), *arguments))

    async def take(self) -> tuple[int, int] | None:
        """Become the writer; return the next number and how many tokens were told of, or None if all is written."""
        found = await self._route.run(TAKE, (self._key, self._record), self._writer, self._ttl_ms)
        return (int(found[0]), int(found[1])) if found else None

    async def read(self, after: str = START) -> list[Entry]:
        """Return entries after the one named, oldest first; not always all there are."""
        command = ("XRANGE", self._key, f"({after}", "+", "COUNT", _PAGE)
        return [_entry(raw) for raw in await self._route.call(self._key, *command)]

    async def wait(self, after: str, *, wait_s: float) -> list[Entry]:
        """Return entries after the one named as soon as there are any, none after `wait_s`; takes a connection."""
        command = ("XREAD", "COUNT", _PAGE, "BLOCK", int(wait_s * 1000), "STREAMS", self._key, after)
        try:
            reply = await self._route.once(self._key, *command, blocking=True)
        except PASSING:  # the call that follows is patient
            return await self.read(after)
        return [_entry(raw) for raw in reply[0][1]] if reply else []

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
    _, number, _, num_tokens, _, data, _, last, *_ = fields
    return Entry(entry_id.decode(), int(number), int(num_tokens), data, last == b"1")
