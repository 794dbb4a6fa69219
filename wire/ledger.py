"""The ledger: one entry for each request that cost tokens, however it ended, in a stream of Redis.

The edge writes it when an answer is over, with what the client was shown. If the edge dies, the replica's own count
stands in: the replica notes it at the end of its work, and an edge that finds such a note without an entry after a
while writes it. Whoever comes first, a request has one entry. The stream is cut at `MAX_ENTRIES`, oldest first: who
must keep more reads it (`headrace ledger`) into a place of their own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import msgspec

from wire.bus.fields import fields_of
from wire.bus.route import Route
from wire.bus.script import Script
from wire.topics import PREFIX

log = logging.getLogger(__name__)

MAX_ENTRIES = 200_000  # about 60 MB
MAX_NOTES = 100_000  # beyond, replicas' notes are dropped: no edge has looked for long
PATIENCE_S = 60.0  # an edge has so long to write what a replica has noted
_SEEN_MS = 2 * 3_600_000  # longer than any request lives, one of the background too
_PAGE = 500

_ENTRIES, _NOTES = f"{PREFIX}:{{ledger}}:entries", f"{PREFIX}:{{ledger}}:notes"


WRITE = Script("""
-- KEYS entries, notes, seen. ARGV request, most entries, seen ms, field, value, ... 1 if it is the first entry.
redis.call('HDEL', KEYS[2], ARGV[1])
if not redis.call('SET', KEYS[3], 1, 'NX', 'PX', ARGV[3]) then return 0 end
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', unpack(ARGV, 4))
return 1
""")

NOTE = Script("""
-- KEYS notes, seen. ARGV request, most notes, note. 1 if it is kept.
if redis.call('EXISTS', KEYS[2]) == 1 or redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
""")


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one request cost. `end` is a finish reason, an error's code, or client_gone; `at` is Unix time.

    `fetched_tokens` of the cached ones came from another replica. `energy_j` is 0 also where no replica has a meter.
    """

    request_id: str
    model: str
    end: str
    attempt: int = 0
    tenant: str = ""
    key_id: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    completion_tokens: int = 0
    at: float = 0.0
    by: str = "edge"
    fetched_tokens: int = 0
    energy_j: float = 0.0


class Ledger:
    """Access to the ledger of a deployment."""

    def __init__(self, route: Route) -> None:
        self._route = route

    async def write(self, entry: Entry) -> bool:
        """Add a request's entry; False if it has one. May run twice."""
        keys = (_ENTRIES, _NOTES, _seen(entry.request_id))
        fields = [word for name, value in _fields(entry) for word in (name, value)]
        head = (entry.request_id, MAX_ENTRIES, _SEEN_MS)
        return bool(await self._route.run(WRITE, keys, *head, *fields))

    async def note(self, entry: Entry) -> bool:
        """Leave a replica's count for the case that the edge never writes; False if there is no need, or no room."""
        keys = (_NOTES, _seen(entry.request_id))
        return bool(await self._route.run(NOTE, keys, entry.request_id, MAX_NOTES, msgspec.json.encode(entry)))

    async def sweep(
        self, patience_s: float = PATIENCE_S, *, settle: Callable[[Entry], Awaitable[None]] | None = None
    ) -> int:
        """Write the entries of requests that were noted long ago and that no edge has accounted for.

        `settle` does first what else their edges would have done; it may be called again after a failure.
        """
        written = 0
        cursor = b"0"
        while True:
            cursor, pairs = await self._route.call(_NOTES, "HSCAN", _NOTES, cursor, "COUNT", _PAGE)
            for request_id, raw in zip(pairs[::2], pairs[1::2], strict=True):
                try:
                    entry = msgspec.json.decode(raw, type=Entry)
                except msgspec.DecodeError:
                    log.error("request %r: its note makes no sense and is dropped", request_id)
                    await self._route.call(_NOTES, "HDEL", _NOTES, request_id)
                    continue
                if time.time() - entry.at >= patience_s:
                    if settle is not None:
                        await settle(entry)
                    written += await self.write(entry)
            if int(cursor) == 0:
                return written

    async def read(self, after: str = "-") -> AsyncIterator[tuple[str, Entry]]:
        """Yield the entries behind one, oldest first, with their ids; ends with the newest there is."""
        while True:
            start = after if after == "-" else f"({after}"
            page = await self._route.call(_ENTRIES, "XRANGE", _ENTRIES, start, "+", "COUNT", _PAGE)
            for entry_id, raw in page or ():
                after = entry_id.decode()
                yield after, _entry(fields_of(raw))
            if len(page or ()) < _PAGE:
                return


def _seen(request_id: str) -> str:
    return f"{PREFIX}:{{ledger}}:seen:{request_id}"


def _fields(entry: Entry) -> Iterator[tuple[str, str]]:
    for name in entry.__struct_fields__:
        value = getattr(entry, name)
        if value not in ("", 0):
            yield name, f"{value:.3f}" if isinstance(value, float) else str(value)


def _entry(fields: dict[bytes, bytes]) -> Entry:
    found: dict[str, Any] = {name.decode(): value.decode() for name, value in fields.items()}
    return msgspec.convert(found, Entry, strict=False)
