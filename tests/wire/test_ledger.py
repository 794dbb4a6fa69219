"""The ledger on a real server: one entry for a request, whoever writes and however often."""

from __future__ import annotations

import time

import pytest

from wire.bus import Bus
from wire.ledger import Entry, Ledger

pytestmark = pytest.mark.anyio

ENTRY = Entry(
    request_id="r1",
    model="m",
    end="stop",
    attempt=1,
    tenant="t",
    key_id="k",
    prompt_tokens=10,
    cached_tokens=4,
    reasoning_tokens=2,
    completion_tokens=5,
    at=1000.5,
)


async def entries(ledger: Ledger) -> list[Entry]:
    return [entry async for _, entry in ledger.read()]


async def test_an_entry_is_read_as_it_was_written_and_written_once(bus: Bus) -> None:
    ledger = Ledger(bus.route)
    assert await ledger.write(ENTRY)
    assert not await ledger.write(Entry(request_id="r1", model="m", end="length", attempt=2, completion_tokens=99))
    least = Entry(request_id="r2", model="m", end="client_gone")
    assert await ledger.write(least)
    assert await entries(ledger) == [ENTRY, least]
    ids = [entry_id async for entry_id, _ in ledger.read()]
    assert [entry async for _, entry in ledger.read(ids[0])] == [least]


async def test_a_replicas_note_becomes_an_entry_only_when_no_edge_has_written_one(bus: Bus) -> None:
    ledger = Ledger(bus.route)
    now = time.time()
    noted = Entry(request_id="r1", model="m", end="stop", completion_tokens=9, at=now, by="replica")
    assert await ledger.note(noted)
    assert await ledger.sweep() == 0, "the edge has a while"
    assert await ledger.write(ENTRY)
    assert not await ledger.note(noted), "it is accounted for"
    assert await ledger.sweep(0) == 0
    left = Entry(request_id="r3", model="m", end="length", completion_tokens=7, at=round(now - 100, 3), by="replica")
    assert await ledger.note(left)
    assert await ledger.sweep() == 1
    assert await ledger.sweep() == 0
    assert not await ledger.write(Entry(request_id="r3", model="m", end="stop"))
    assert await entries(ledger) == [ENTRY, left]
    await bus.route.call("hr:{ledger}:notes", "HSET", "hr:{ledger}:notes", "r4", "no JSON")
    assert await ledger.sweep(0) == 0
    assert await bus.route.call("hr:{ledger}:notes", "HLEN", "hr:{ledger}:notes") == 0
