"""The courier: in order without waiting, and every message is told of, whatever happens to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.wire.test_inbox import first, length, note
from wire import topics
from wire.bus import Bus, BusOptions
from wire.bus.courier import MAX_SILENT, MAX_UNANSWERED, Courier

pytestmark = pytest.mark.anyio

EDGE = topics.edge("e")


@pytest.fixture(autouse=True)
def one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slow machine see plain commands, too: the script looks at a stream once, however long ago that was."""
    monkeypatch.setattr("wire.bus.courier.CHECK_S", 1e9)


class Told:
    """What became of messages, in the order in which it was told."""

    def __init__(self) -> None:
        self.arrived: list[tuple[int, bool]] = []
        self._news = anyio.Event()

    def of(self, number: int) -> Any:
        """Return the function to be told of a message."""

        def tell(arrived: bool) -> None:
            self.arrived.append((number, arrived))
            self._news.set()

        return tell

    async def until(self, count: int) -> None:
        """Wait until so many are told of."""
        with anyio.fail_after(60):
            while len(self.arrived) < count:
                self._news = anyio.Event()
                await self._news.wait()


@asynccontextmanager
async def ready(bus: Bus) -> AsyncIterator[Courier]:
    courier = bus.courier()
    try:
        assert not courier.may_post(EDGE)
        await courier.prepare(EDGE)
        assert courier.may_post(EDGE)
        yield courier
    finally:
        courier.close()


def time_is_up(courier: Courier) -> None:
    """Let the time for a reply be over, without a wait for it."""
    for way in courier._ways.values():
        way._heard_at = -1e9
        way._look()


async def test_messages_arrive_in_order_and_are_told_of_without_anybody_waiting(bus: Bus) -> None:
    told = Told()
    async with ready(bus) as courier:
        for number in range(MAX_UNANSWERED):
            assert courier.may_post(EDGE)
            courier.post(EDGE, note(number), maxlen=100, tell=told.of(number))
        assert not courier.may_post(EDGE)  # so much and no more is pressed upon a server
        await told.until(MAX_UNANSWERED)
        assert courier.may_post(EDGE)
    assert told.arrived == [(number, True) for number in range(MAX_UNANSWERED)]
    assert await first(bus.inbox(EDGE), MAX_UNANSWERED) == [f"r{number}" for number in range(MAX_UNANSWERED)]


async def test_it_finds_a_stream_full_and_keeps_one_from_expiring_for_ever(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    async with ready(bus) as courier:
        courier.post(EDGE, note(0), maxlen=1, tell=told.of(0))
        await told.until(1)
        assert 3_500_000 < await bus.route.call(EDGE, "PTTL", EDGE) <= 3_600_000
        monkeypatch.setattr("wire.bus.courier.CHECK_S", 0.0)  # the time of a look has come
        courier.post(EDGE, note(1), maxlen=1, tell=told.of(1))
        await told.until(2)
    assert told.arrived == [(0, True), (1, False)]
    assert await length(bus, EDGE) == 1


def cut_at_add(relay: Any) -> Any:
    """Return what a relay does before a command: it cuts its lines when a message is to be added."""

    async def cut(command: list[bytes]) -> None:
        if b"XADD" in command:
            await relay.cut()

    return cut


async def test_a_lost_line_is_told_for_all_that_was_on_it(bus: Bus, make_relay: Any) -> None:
    relay, told = make_relay(), Told()

    async with anyio.create_task_group() as tasks:
        await tasks.start(relay.serve)
        async with Bus.open(relay.url, bus.options) as far, ready(far) as courier:
            courier.post(EDGE, note(0), maxlen=9, tell=told.of(0))
            await told.until(1)
            relay.before = cut_at_add(relay)
            for number in range(1, 4):
                courier.post(EDGE, note(number), maxlen=9, tell=told.of(number))
            await told.until(4)
            assert not courier.may_post(EDGE)
            relay.before = None
            await courier.prepare(EDGE)
            assert courier.may_post(EDGE)
        await relay.until_left()
        tasks.cancel_scope.cancel()
    assert told.arrived == [(0, True), (1, False), (2, False), (3, False)]


async def test_a_silent_server_is_told_of_after_the_reply_timeout(bus: Bus, make_relay: Any) -> None:
    relay, told, held = make_relay(), Told(), anyio.Event()

    async def hold(command: list[bytes]) -> None:
        if command[0] == b"EVALSHA":
            held.set()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        await tasks.start(relay.serve)
        async with Bus.open(relay.url, bus.options) as far, ready(far) as courier:
            relay.before = hold
            courier.post(EDGE, note(0), maxlen=9, tell=told.of(0))
            with anyio.fail_after(60):
                await held.wait()
            time_is_up(courier)
            await told.until(1)
        tasks.cancel_scope.cancel()
    assert told.arrived == [(0, False)]


async def test_who_is_patient_has_most_replies_left_out_and_is_told_all_the_same(bus: Bus, make_relay: Any) -> None:
    relay, told = make_relay(), Told()
    replies: list[bytes] = []

    async def note_reply(command: list[bytes]) -> None:
        replies.append(command[0])

    relay.after = note_reply
    count = 2 * MAX_SILENT
    async with anyio.create_task_group() as tasks:
        await tasks.start(relay.serve)
        async with Bus.open(relay.url, bus.options) as far, ready(far) as courier:
            courier.post(EDGE, note(0), maxlen=99, tell=told.of(0), patient=True)  # finds out whether it is full
            await told.until(1)
            replies.clear()
            for number in range(1, count):
                courier.post(EDGE, note(number), maxlen=99, tell=told.of(number), patient=True)
                if number == 1 + MAX_SILENT:
                    await told.until(2 + MAX_SILENT)
            courier.ask(EDGE)
            await told.until(count)
            courier.ask(EDGE)  # nothing is open
        await relay.until_left()
        tasks.cancel_scope.cancel()
    assert replies == [b"XADD", b"PING"]
    assert told.arrived == [(number, True) for number in range(count)]
    assert await first(bus.inbox(EDGE), count) == [f"r{number}" for number in range(count)]


async def test_of_a_lost_line_the_patient_are_told_too(bus: Bus, make_relay: Any) -> None:
    relay, told = make_relay(), Told()

    async with anyio.create_task_group() as tasks:
        await tasks.start(relay.serve)
        async with Bus.open(relay.url, bus.options) as far, ready(far) as courier:
            courier.post(EDGE, note(0), maxlen=9, tell=told.of(0))
            await told.until(1)
            relay.before = cut_at_add(relay)
            courier.post(EDGE, note(1), maxlen=9, tell=told.of(1), patient=True)
            await told.until(2)
        await relay.until_left()
        tasks.cancel_scope.cancel()
    assert told.arrived == [(0, True), (1, False)]


async def test_silence_that_was_ordered_is_no_loss(bus: Bus) -> None:
    told = Told()
    async with ready(bus) as courier:
        courier.post(EDGE, note(0), maxlen=9, tell=told.of(0))
        await told.until(1)
        courier.post(EDGE, note(1), maxlen=9, tell=told.of(1), patient=True)
        time_is_up(courier)
        await told.until(2)
        assert courier.may_post(EDGE)
    assert told.arrived == [(0, True), (1, True)]


async def test_where_silence_cannot_be_ordered_every_message_has_its_reply(bus: Bus, bus_url: str) -> None:
    told = Told()
    await bus.route.call("", "ACL", "SETUSER", "mute", "on", ">x", "~*", "&*", "+@all", "-client|reply")
    try:
        url = bus_url.replace("://", "://mute:x@")
        async with Bus.open(url, bus.options) as far, ready(far) as courier:
            for number in range(4):
                courier.post(EDGE, note(number), maxlen=9, tell=told.of(number), patient=True)
                await told.until(number + 1)
    finally:
        await bus.route.call("", "ACL", "DELUSER", "mute")
    assert told.arrived == [(number, True) for number in range(4)]


@pytest.mark.parametrize("how", ["cancelled", "silent"])
async def test_a_preparation_that_comes_to_nothing_leaves_no_line_open(
    how: str, bus: Bus, bus_options: BusOptions, make_relay: Any
) -> None:
    relay, reached, hold = make_relay(), anyio.Event(), anyio.Event()

    async def before(command: list[bytes]) -> None:
        if command[0] == b"SCRIPT":
            reached.set()
            await hold.wait()

    relay.before = before
    async with anyio.create_task_group() as tasks:
        await tasks.start(relay.serve)
        async with Bus.open(relay.url, bus_options) as beyond:
            courier = beyond.courier()
            async with anyio.create_task_group() as preparing:
                if how == "silent":
                    courier._timeout_s = 0.0
                preparing.start_soon(courier.prepare, EDGE)
                with anyio.fail_after(60):
                    await reached.wait()
                if how == "cancelled":
                    preparing.cancel_scope.cancel()
            assert not courier.may_post(EDGE)
            hold.set()
            with anyio.fail_after(60):
                while len(relay._lines) > 1:  # the one that calls share stays
                    await anyio.sleep(0.01)
        await relay.until_left()
        tasks.cancel_scope.cancel()
