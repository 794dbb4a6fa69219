"""A consumer loses nothing: dead members, lost replies, deleted groups and streams, trimmed and malformed entries."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import redis

from tests.wire.conftest import fall_silent
from wire import topics
from wire.bus import Bus, BusOptions, Delivery, HandOff
from wire.bus.options import MAX_DELIVERIES
from wire.messages import Failure, Job

pytestmark = pytest.mark.anyio

HISTORY, TOKENIZER = topics.history(0), topics.tokenizer(0, "m")
GROUP = "history"


async def read(bus: Bus, name: str = "one", *, stream: str = HISTORY, count: int = 10) -> list[Delivery]:
    with anyio.fail_after(60):
        return await bus.consumer(stream, group=GROUP, name=name).read(count)


async def admit(bus: Bus, make_job: Any, *names: str) -> None:
    for name in names:
        await bus.admit(make_job(name), {}, to=HISTORY, ttl_s=60)


def ids(deliveries: list[Delivery]) -> list[str]:
    return [delivery.message.request_id for delivery in deliveries if isinstance(delivery.message, Job)]


async def pending(bus: Bus, stream: str = HISTORY) -> int:
    summary = await bus.route.call(stream, "XPENDING", stream, GROUP)
    return int(summary[0])


async def test_entries_of_a_dead_consumer_are_claimed_by_a_living_one(bus: Bus, make_job: Any) -> None:
    await admit(bus, make_job, "r1", "r2")
    assert ids(await read(bus, "dead")) == ["r1", "r2"]
    await fall_silent(bus, HISTORY, GROUP, "dead")
    claimed = await read(bus, "living")
    assert ids(claimed) == ["r1", "r2"]
    assert {delivery.times_delivered for delivery in claimed} == {2}


async def test_a_consumer_that_keeps_its_entries_alive_is_not_robbed(bus: Bus, make_job: Any) -> None:
    await admit(bus, make_job, "r1")
    slow = bus.consumer(HISTORY, group=GROUP, name="slow")
    [held] = await slow.read(1)
    await fall_silent(bus, HISTORY, GROUP, "slow")
    await slow.keep_alive()
    await admit(bus, make_job, "r2")
    assert ids(await read(bus, "thief")) == ["r2"]  # what it could rob it would have got first
    assert await bus.finish(held)


async def test_keeping_alive_never_takes_an_entry_back_from_a_new_owner(bus: Bus, make_job: Any) -> None:
    await admit(bus, make_job, "r1")
    woken = bus.consumer(HISTORY, group=GROUP, name="woken")
    await woken.read(1)
    await fall_silent(bus, HISTORY, GROUP, "woken")
    await read(bus, "owner")
    await woken.keep_alive()
    [row] = await bus.route.call(HISTORY, "XPENDING", HISTORY, GROUP, "-", "+", 10)
    assert row[1] == b"owner"


async def test_a_consumer_started_again_under_its_name_finds_what_it_held(bus: Bus, make_job: Any) -> None:
    await admit(bus, make_job, "r1", "r2")
    await read(bus, "one", count=1)
    again = bus.consumer(HISTORY, group=GROUP, name="one")
    with anyio.fail_after(60):
        first, second = await again.read(10), await again.read(10)
    assert (ids(first), ids(second)) == (["r1"], ["r2"])
    assert first[0].times_delivered == 2


async def test_after_three_deliveries_an_entry_becomes_a_dead_letter_and_a_failure(bus: Bus, make_job: Any) -> None:
    await admit(bus, make_job, "poison")
    for attempt in range(1, 4):
        [poison] = await read(bus, f"victim{attempt}", count=1)
        assert ids([poison]) == ["poison"]
        assert poison.times_delivered == attempt
        await fall_silent(bus, HISTORY, GROUP, f"victim{attempt}")
    survivor = bus.consumer(HISTORY, group=GROUP, name="survivor")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(survivor.read, 1)
            failure = await anext(bus.inbox(topics.edge("e")))
            await admit(bus, make_job, "fine")  # only this one comes out of the read
    assert isinstance(failure, Failure)
    assert (failure.request_id, failure.code) == ("poison", "dead_letter")
    assert bus.counts.num_dead_letters == 1
    assert len(survivor.open_ids) == 1
    dead = topics.dead_letter(0)
    [[_, fields]] = await bus.route.call(dead, "XRANGE", dead, "-", "+")
    assert fields[fields.index(b"stream") + 1] == HISTORY.encode()


@pytest.mark.parametrize(
    "fields",
    [("m", b"\xc1"), ("m", b""), ("m", b"\x81\xa4type\xa4Nope"), ("other", b"1"), ("m", b"\x80", "t", b"never")],
)
async def test_malformed_bytes_are_a_dead_letter_and_not_a_crash(bus: Bus, make_job: Any, fields: Any) -> None:
    await bus.route.call(HISTORY, "XADD", HISTORY, "*", *fields)
    await admit(bus, make_job, "r1")
    assert ids(await read(bus)) == ["r1"]
    assert bus.counts.num_malformed == 1
    assert await bus.route.call(topics.dead_letter(0), "XLEN", topics.dead_letter(0)) == 1
    assert await pending(bus) == 1


async def read_while_full(
    bus: Bus, bus_url: str, caplog: pytest.LogCaptureFixture, *, num_refusals: int
) -> list[Delivery]:
    """Read from a bus that has no memory left until it has refused so often."""
    found: list[Delivery] = []

    async def look() -> None:
        found.extend(await read(bus))

    async with anyio.create_task_group() as tasks:
        with redis.Redis.from_url(bus_url) as client:
            client.config_set("maxmemory", "1")
            try:
                tasks.start_soon(look)
                with anyio.fail_after(60):
                    while caplog.text.count("out of memory") < num_refusals:
                        await anyio.sleep(0.002)
            finally:
                client.config_set("maxmemory", "0")
    return found


@pytest.mark.parametrize("num_died", [0, MAX_DELIVERIES])
async def test_a_reader_outlasts_a_bus_that_is_too_full_to_make_its_group_or_to_end_what_kills_consumers(
    bus: Bus, bus_url: str, make_job: Any, caplog: pytest.LogCaptureFixture, num_died: int
) -> None:
    await admit(bus, make_job, *(["poison"] if num_died else []))
    for number in range(num_died):
        await read(bus, f"dead{number}")
        await fall_silent(bus, HISTORY, GROUP, f"dead{number}")
    await admit(bus, make_job, "r1")
    found = await read_while_full(bus, bus_url, caplog, num_refusals=1)
    assert ids(found) == ["r1"]
    assert bus.counts.num_dead_letters == bool(num_died)


async def test_what_was_read_beside_it_does_not_count_as_delivered_while_the_bus_is_too_full_to_end_it(
    bus: Bus, bus_url: str, make_job: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await admit(bus, make_job, "poison", "r1")
    poison, _ = await read(bus, "dead")
    await fall_silent(bus, HISTORY, GROUP, "dead")
    died = ("IDLE", 7_200_000, "RETRYCOUNT", MAX_DELIVERIES, "JUSTID")
    await bus.route.call(HISTORY, "XCLAIM", HISTORY, GROUP, "dead", 0, poison.entry_id, *died)
    found = await read_while_full(bus, bus_url, caplog, num_refusals=MAX_DELIVERIES + 1)
    assert [(delivery.times_delivered, ids([delivery])) for delivery in found] == [(2, ["r1"])]
    assert bus.counts.num_dead_letters == 1


async def test_dead_letters_are_bounded(bus: Bus, make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wire.bus.endings.DEAD_LETTER_MAXLEN", 3)
    for _ in range(5):
        await bus.route.call(HISTORY, "XADD", HISTORY, "*", "m", b"\xc1")
    await admit(bus, make_job, "r1")
    assert ids(await read(bus)) == ["r1"]
    assert await bus.route.call(topics.dead_letter(0), "XLEN", topics.dead_letter(0)) == 3


async def test_pending_entries_without_payload_are_acknowledged_and_counted_as_lost(bus: Bus, make_job: Any) -> None:
    await admit(bus, make_job, "r1", "r2", "r3", "r4")
    held = await read(bus, "one")
    await bus.route.call(HISTORY, "XTRIM", HISTORY, "MAXLEN", 2)
    await bus.route.call(HISTORY, "XDEL", HISTORY, held[2].entry_id)
    again = await read(bus, "one")
    assert ids(again) == ["r4"]
    assert bus.counts.num_lost == 3
    assert await pending(bus) == 1
    await bus.finish(again[0])
    assert await pending(bus) == 0


async def test_entries_without_payload_of_a_dead_consumer_leave_the_group_too(bus: Bus, make_job: Any) -> None:
    await admit(bus, make_job, "r1", "r2", "r3")
    await read(bus, "dead")
    await fall_silent(bus, HISTORY, GROUP, "dead")
    await bus.route.call(HISTORY, "XTRIM", HISTORY, "MAXLEN", 1)
    assert ids(await read(bus, "living")) == ["r3"]
    assert bus.counts.num_lost == 2
    assert await pending(bus) == 1


@pytest.mark.parametrize("what", ["group", "stream"])
async def test_a_group_or_stream_deleted_under_a_running_consumer_is_made_again(
    bus: Bus, make_job: Any, what: str
) -> None:
    consumer = bus.consumer(HISTORY, group=GROUP, name="one")
    await admit(bus, make_job, "r1")
    await consumer.read(1)
    found: list[str] = []

    async def wait(task_status: Any) -> None:
        task_status.started()
        while "r2" not in found:
            found.extend(ids(await consumer.read(10)))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            await tasks.start(wait)
            if what == "group":
                await bus.route.call(HISTORY, "XGROUP", "DESTROY", HISTORY, GROUP)
            else:
                await bus.route.call(HISTORY, "DEL", HISTORY)
            await admit(bus, make_job, "r2")
    # What lay unacknowledged in the stream is delivered again with a new group; with the stream it is gone.
    assert found == (["r1", "r2"] if what == "group" else ["r2"])


async def test_a_hand_off_while_the_group_is_gone_loses_nothing(bus: Bus, make_job: Any) -> None:
    await admit(bus, make_job, "r1")
    [held] = await read(bus, "one")
    await bus.route.call(HISTORY, "XGROUP", "DESTROY", HISTORY, GROUP)
    assert await bus.hand_off(held, make_job("r1"), to=TOKENIZER) is HandOff.LOST
    [again] = await read(bus, "two")
    assert await bus.hand_off(again, make_job("r1"), to=TOKENIZER) is HandOff.DONE


async def test_a_replica_s_stream_is_never_claimed(bus: Bus, make_job: Any) -> None:
    stream = topics.replica(0, "m-a-1")
    await bus.admit(make_job(), {}, to=stream, ttl_s=60)
    await read(bus, "m-a-1", stream=stream)
    await fall_silent(bus, stream, GROUP, "m-a-1")
    await bus.admit(make_job("r2"), {}, to=stream, ttl_s=60)
    assert ids(await read(bus, "m-b-2", stream=stream)) == ["r2"]  # what it could claim it would have got first
    rows = await bus.route.call(stream, "XPENDING", stream, GROUP, "-", "+", 10)
    assert [row[1] for row in rows] == [b"m-a-1", b"m-b-2"]


async def test_a_replica_finds_again_what_a_lost_reply_carried(bus: Bus, make_job: Any, make_relay: Any) -> None:
    stream = topics.replica(0, "m-a-1")
    relay = make_relay()
    cut: list[bytes] = []

    async def cut_after_first_read(command: list[bytes]) -> None:
        if command[0] == b"XREADGROUP" and not cut and await bus.route.call(stream, "XLEN", stream):
            cut.append(command[0])
            await relay.cut()

    async with anyio.create_task_group() as tasks:
        await tasks.start(relay.serve)
        async with Bus.open(relay.url, bus.options) as victim:
            await bus.admit(make_job(), {}, to=stream, ttl_s=60)
            relay.after = cut_after_first_read
            assert ids(await read(victim, "m-a-1", stream=stream)) == ["r1"]
            assert cut
        tasks.cancel_scope.cancel()


async def test_a_consumer_that_leaves_gives_its_entries_back_at_once_and_uncounted(bus_url: str, make_job: Any) -> None:
    async with Bus.open(bus_url, BusOptions(block_s=0.05, claim_idle_s=3600.0)) as bus:
        await admit(bus, make_job, "r1")
        leaving = bus.consumer(HISTORY, group=GROUP, name="leaving")
        await leaving.read(1)
        await leaving.leave()
        [again] = await read(bus, "staying")
        assert again.times_delivered == 1


async def test_a_consumer_that_holds_nothing_leaves_no_name_behind(bus: Bus, make_job: Any) -> None:
    leaving = bus.consumer(HISTORY, group=GROUP, name="leaving")
    await admit(bus, make_job, "r1")
    [held] = await leaving.read(1)
    await bus.finish(held)
    await leaving.leave()
    assert await bus.route.call(HISTORY, "XINFO", "CONSUMERS", HISTORY, GROUP) == []


async def test_consumers_that_died_long_ago_are_struck_from_the_group(
    bus: Bus, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admit(bus, make_job, "r1", "r2")
    [first] = await read(bus, "idle", count=1)
    await bus.finish(first)
    await read(bus, "holding", count=1)
    await fall_silent(bus, HISTORY, GROUP, "holding")
    monkeypatch.setattr("wire.bus.consumer.SILENT_CONSUMER_TTL_S", -1.0)
    await read(bus, "new")
    rows = await bus.route.call(HISTORY, "XINFO", "CONSUMERS", HISTORY, GROUP)
    assert {row[1] for row in rows} <= {b"holding", b"new"}
    assert await pending(bus) == 1


async def test_a_released_entry_is_delivered_again_after_its_delay(bus: Bus, make_job: Any) -> None:
    await admit(bus, make_job, "r1")
    consumer = bus.consumer(HISTORY, group=GROUP, name="one")
    [held] = await consumer.read(1)
    await consumer.release(held, delay_s=0.01)
    assert consumer.open_ids == frozenset()
    with anyio.fail_after(60):
        [again] = await consumer.read(1)
    assert again.times_delivered == 2
