"""Inboxes and fan-out streams: bounded, in order, each message once, and only what was read is removed."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import anyio
import pytest

from wire import codec, topics
from wire.bus import Bus, BusOptions
from wire.errors import OverloadedError
from wire.messages import Cancel, ReplicaStatus, TokenBatch, TokenChunk

pytestmark = pytest.mark.anyio

EDGE, STATUS = topics.edge("e"), topics.status("m")


def note(number: int) -> Cancel:
    return Cancel(request_id=f"r{number}", attempt=0)


async def first(messages: Any, count: int) -> list[str]:
    found: list[str] = []
    with anyio.fail_after(60):
        async with aclosing(messages) as stream:
            async for message in stream:
                found.append(message.request_id)
                if len(found) == count:
                    break
    return found


async def length(bus: Bus, stream: str) -> int:
    return int(await bus.route.call(stream, "XLEN", stream))


async def test_messages_arrive_in_order_and_are_removed_once_read(bus: Bus) -> None:
    for number in range(5):
        await bus.send(EDGE, note(number), maxlen=10)
    found: list[str] = []

    async def follow() -> None:
        async for message in bus.inbox(EDGE):
            found.append(message.request_id)  # type: ignore[union-attr] # noqa: PERF401

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        with anyio.fail_after(60):
            while await length(bus, EDGE):
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert found == ["r0", "r1", "r2", "r3", "r4"]


async def test_a_reader_that_stops_half_way_leaves_the_rest(bus: Bus) -> None:
    for number in range(5):
        await bus.send(EDGE, note(number), maxlen=10)
    assert await first(bus.inbox(EDGE), 2) == ["r0", "r1"]
    assert await length(bus, EDGE) == 5  # nothing is trimmed while its batch is still being handed out


async def test_a_full_inbox_refuses_and_keeps_what_it_has(bus: Bus) -> None:
    for number in range(3):
        await bus.send(EDGE, note(number), maxlen=3)
    with pytest.raises(OverloadedError, match="full"):
        await bus.send(EDGE, note(3), maxlen=3)
    assert await first(bus.inbox(EDGE), 3) == ["r0", "r1", "r2"]


async def test_an_inbox_that_nobody_writes_to_expires(bus: Bus) -> None:
    await bus.send(EDGE, note(0), maxlen=10)
    assert 3_500_000 < await bus.route.call(EDGE, "PTTL", EDGE) <= 3_600_000


async def test_many_messages_go_in_one_write_and_full_streams_are_named(bus: Bus) -> None:
    full, control = topics.edge("full"), topics.control("m-a-1")
    await bus.send(full, note(9), maxlen=1)
    letters = [(EDGE, note(0)), (full, note(1)), (control, note(2)), (EDGE, note(3))]
    assert await bus.send_many(letters, maxlen=1) == [full, EDGE]
    assert await bus.send_many([(EDGE, note(number)) for number in range(1, 100)], maxlen=200) == []
    assert await first(bus.inbox(EDGE), 100) == [f"r{number}" for number in range(100)]
    assert await first(bus.inbox(control), 1) == ["r2"]
    assert await bus.send_many([], maxlen=1) == []


async def test_many_messages_are_published_in_one_trip_all_or_none(bus: Bus) -> None:
    await bus.publish_many(STATUS, [note(number) for number in range(500)], maxlen=10_000)
    assert await first(bus.watch(STATUS), 500) == [f"r{number}" for number in range(500)]
    await bus.publish_many(STATUS, [], maxlen=10)
    assert await length(bus, STATUS) == 500


async def test_a_repeated_message_is_dropped_by_its_reader(bus: Bus) -> None:
    raw = codec.encode(note(1))
    for nonce in ("a1", "a1", "a2"):
        await bus.route.call(EDGE, "XADD", EDGE, "*", "m", raw, "n", nonce)
    await bus.send(EDGE, note(2), maxlen=10)
    assert await first(bus.inbox(EDGE), 3) == ["r1", "r1", "r2"]


async def test_a_message_whose_reply_got_lost_is_sent_again_and_read_once(bus: Bus, make_relay: Any) -> None:
    relay = make_relay()
    lost: list[bytes] = []

    async def lose(command: list[bytes]) -> None:
        if command[0] in (b"EVAL", b"XADD") and command[0] not in lost:
            lost.append(command[0])
            await relay.cut()

    async with anyio.create_task_group() as tasks:
        await tasks.start(relay.serve)
        async with Bus.open(relay.url, bus.options) as sender:
            relay.after = lose
            await sender.send(EDGE, note(1), maxlen=10)
            await sender.publish(EDGE, note(2), maxlen=10)
            await sender.send(EDGE, note(3), maxlen=10)
        tasks.cancel_scope.cancel()
    assert lost == [b"EVAL", b"XADD"]
    assert await length(bus, EDGE) == 5
    assert await first(bus.inbox(EDGE), 3) == ["r1", "r2", "r3"]


async def test_every_watcher_sees_every_message_and_removes_none(bus: Bus) -> None:
    many = 70  # more than an inbox's reader leaves lying
    for number in range(many):
        await bus.publish(STATUS, note(number), maxlen=100)
    watchers = [bus.watch(STATUS), bus.watch(STATUS)]
    for watcher in watchers:
        assert [(await anext(watcher)).request_id for _ in range(many)] == [f"r{number}" for number in range(many)]  # type: ignore[union-attr]
    await bus.publish(STATUS, note(many), maxlen=100)
    for watcher in watchers:
        assert (await anext(watcher)).request_id == f"r{many}"  # type: ignore[union-attr]
        await watcher.aclose()
    assert await length(bus, STATUS) == many + 1


async def test_tokens_may_lie_for_a_few_steps_and_all_else_goes_at_once(bus: Bus, bus_url: str) -> None:
    found: list[Any] = []
    patient = BusOptions(
        block_s=180.0, reply_timeout_s=190.0
    )  # a removal when nothing comes any more would be too late

    async def follow() -> None:
        async with Bus.open(bus_url, patient) as reader:
            async for message in reader.inbox(EDGE):
                found.append(message)  # noqa: PERF401

    async def say(message: Any) -> None:
        await bus.send(EDGE, message, maxlen=20)  # never reached, however many pass
        with anyio.fail_after(60):
            while message not in found:
                await anyio.lowlevel.checkpoint()

    def tokens(step: int, finish: str | None = None) -> TokenBatch:
        chunk = TokenChunk(request_id="r", attempt=0, index=step, token_ids=(1,), finish_reason=finish)
        return TokenBatch(replica_id="m-a", step=step, chunks=(chunk,))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        for step in range(100):
            await say(tokens(step))
        for last in (note(1), tokens(100, "stop")):
            await say(tokens(len(found)))
            assert await length(bus, EDGE)
            await say(last)
            with anyio.fail_after(60):
                while await length(bus, EDGE):
                    await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_a_watcher_from_now_on_misses_nothing_that_comes_later(bus: Bus) -> None:
    await bus.publish(STATUS, note(0), maxlen=100)
    found: list[str] = []
    async with anyio.create_task_group() as tasks:
        stream = bus.watch(STATUS, start="$")

        async def follow() -> None:
            found.extend(await first(stream, 2))
            tasks.cancel_scope.cancel()

        tasks.start_soon(follow)
        number = 1
        while not found:  # the watcher starts somewhere in here; from its start on it sees all
            await bus.publish(STATUS, note(number), maxlen=100_000)
            number += 1
    assert "r0" not in found
    assert int(found[1][1:]) == int(found[0][1:]) + 1


async def test_a_fan_out_stream_drops_its_oldest(bus: Bus) -> None:
    status = ReplicaStatus(replica_id="a", model="m", state="ready", sent_at=1.0)
    for _ in range(1_000):
        await bus.publish(STATUS, status, maxlen=50)
    assert 50 <= await length(bus, STATUS) <= 300


async def test_a_malformed_message_is_skipped_and_counted(bus: Bus) -> None:
    await bus.route.call(EDGE, "XADD", EDGE, "*", "m", b"\xc1")
    await bus.route.call(EDGE, "XADD", EDGE, "*", "x", b"1")
    await bus.send(EDGE, note(1), maxlen=10)
    assert await first(bus.inbox(EDGE), 1) == ["r1"]
    assert bus.counts.num_malformed == 2


async def test_a_bus_that_goes_away_between_two_reads_does_not_end_an_inbox(bus: Bus, make_relay: Any) -> None:
    relay = make_relay()
    looked = anyio.Event()

    async def cut(command: list[bytes]) -> None:
        if command[0] == b"XREVRANGE":  # the look whether the stream began again
            looked.set()
            await relay.cut()

    found: list[str] = []
    async with anyio.create_task_group() as outer:
        await outer.start(relay.serve)
        async with Bus.open(relay.url, BusOptions(block_s=0.01, reply_timeout_s=30.0, patience_s=0.05)) as far:
            relay.before = cut

            async def follow() -> None:
                found.extend(await first(far.inbox(EDGE), 1))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                await looked.wait()
                await anyio.sleep(0.2)  # four times the patience
                relay.before = None
                await bus.send(EDGE, note(1), maxlen=10)
        outer.cancel_scope.cancel()
    assert found == ["r1"]


async def test_an_inbox_deleted_under_its_reader_goes_on(bus: Bus) -> None:
    found: list[str] = []
    async with anyio.create_task_group() as tasks:

        async def follow() -> None:
            async for message in bus.inbox(EDGE):
                found.append(message.request_id)  # type: ignore[union-attr]
                if found[-1] == "r2":
                    tasks.cancel_scope.cancel()

        # An id of the far future: after the deletion the stream counts from today's clock again, below what was read.
        await bus.route.call(EDGE, "XADD", EDGE, "9999999999999-0", "m", codec.encode(note(1)))
        tasks.start_soon(follow)
        with anyio.fail_after(60):
            while not found:
                await anyio.lowlevel.checkpoint()
            await bus.route.call(EDGE, "DEL", EDGE)
            await bus.send(EDGE, note(2), maxlen=10)
            await anyio.sleep_forever()
    assert found == ["r1", "r2"]
