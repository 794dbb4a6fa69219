"""Answers of the background that end when nobody reads them any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gateway.edge.flight import Flight
from gateway.edge.readership import Readership
from tests.gateway.edge.asks import RESPONSES, lines_until
from tests.gateway.edge.test_background import get, text_of, until
from tests.ring import MakeRing, Ring
from tests.script import say
from wire import topics
from wire.bus import Bus
from wire.errors import UnreadError
from wire.messages import Job, Request

pytestmark = pytest.mark.anyio

RESPONSE = "resp_0123456789abcdef01"
LIMIT_S = 100.0
LOOK_S = 30.0


class Clock:
    """What the edges of a test take for the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("gateway.edge.readership.time", clock)
    return clock


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class House:
    """Two edges: one makes a response, which may be read at both."""

    def __init__(self, bus: Bus, clock: Clock, stack: ExitStack) -> None:
        self.clock = clock
        self.maker, self.other = [Readership(bus, 1, look_s=LOOK_S) for _ in range(2)]
        self.flight = Flight(RESPONSE, deadline=1e9, max_pending_tokens=1)
        job = Job(request_id=RESPONSE, partition=0, model="tiny", edge="edge", deadline=1e9)
        request = Request(model="tiny", unread_limit_s=LIMIT_S)
        stack.enter_context(self.maker.awaits(request, job, self.flight))

    async def pass_looks(self, count: int, passed_s: float = LOOK_S) -> None:
        for _ in range(count):
            self.clock.now += passed_s
            await self.other.look()
            await self.maker.look()

    @property
    def has_ended(self) -> bool:
        return isinstance(self.flight.early_failure, UnreadError)


@pytest.fixture
async def house(bus: Bus, clock: Clock, stack: ExitStack) -> House:
    key = topics.job_record(0, RESPONSE)
    await bus.route.call(key, "HSET", key, "admitted", "1")
    return House(bus, clock, stack)


async def test_who_reads_at_any_edge_keeps_it_going_and_it_ends_so_long_after_the_last(house: House) -> None:
    for edge in (house.maker, house.other):
        with edge.reads(RESPONSE), edge.reads(RESPONSE):
            await house.pass_looks(9)
    await house.pass_looks(4)  # the first of them still hears of the last reader
    assert not house.has_ended
    await house.pass_looks(1)
    assert house.has_ended


async def test_a_reader_who_comes_and_goes_between_two_looks_counts(house: House) -> None:
    for _ in range(3):
        await house.pass_looks(3)
        with house.other.reads(RESPONSE):
            pass
        await house.pass_looks(1)
    assert not house.has_ended


async def test_time_in_which_nobody_looked_does_not_count(house: House) -> None:
    await house.pass_looks(1, passed_s=100_000.0)  # as after a machine's sleep
    assert not house.has_ended
    await house.pass_looks(2)
    assert house.has_ended


async def test_an_answer_that_needs_no_reader_has_none_looked_for(bus: Bus, clock: Clock) -> None:
    edge = Readership(bus, 1, look_s=LOOK_S)
    flight = Flight(RESPONSE, deadline=1e9, max_pending_tokens=1)
    job = Job(request_id=RESPONSE, partition=0, model="tiny", edge="edge", deadline=1e9)
    with edge.awaits(Request(model="tiny"), job, flight):
        for _ in range(99):
            clock.now += LOOK_S
            await edge.look()
    assert flight.early_failure is None


async def begin_and_leave(ring: Ring, text: str, **fields: Any) -> str:
    """Ask for a response of the background, read it up to a text, and go away; return its id."""
    body = {"model": "tiny", "input": "hi", "stream": True, "background": True, **fields}
    async with ring.http.stream("POST", RESPONSES, json=body) as response:
        lines = await lines_until(response, text)
    return str(next(line for line in lines if '"id":"resp_' in line).partition('"id":"')[2].partition('"')[0])


@pytest.mark.parametrize("maker", ["stays", "leaves"])
async def test_what_nobody_reads_is_cancelled_says_why_and_keeps_what_was_said(make_ring: MakeRing, maker: str) -> None:
    async with make_ring(background_lease_s=1.0) as ring, ring.another_edge() as other:
        ring.replica.play(*say("one "), finish=None)
        response_id = await begin_and_leave(ring, '"one "', stream_options={"unread_limit_s": 1})
        untouched = await begin_and_leave(ring, '"one "')
        if maker == "leaves":
            await ring.stop_edge()
        done = await until(other, response_id, "cancelled")
        assert (text_of(done), done["error"]["headrace"]["code"]) == ("one ", "unread")
        assert "1 seconds" in done["error"]["message"]
        cancelled = await ring.replica.cancelled()
        assert {cancel.request_id for cancel in cancelled} == {response_id}
        assert (await get(other, untouched))["status"] == "in_progress"


async def test_a_limit_that_cannot_hold_is_refused_by_name(ring: Ring) -> None:
    for fields in (
        {"background": False, "stream_options": {"unread_limit_s": 60}},
        {"background": True, "stream_options": {"unread_limit_s": 0.5}},
    ):
        answer = await ring.http.post(RESPONSES, json={"model": "tiny", "input": "hi", "stream": True, **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream_options.unread_limit_s")
