"""Desks of one process: a job goes from one to the next in one round trip, and whatever is lost on the way is found."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from loadtest.monitor import BESIDE, watched
from wire import topics
from wire.bus import Bus, BusOptions, Delivery, scripts
from wire.bus.neighbours import Neighbour
from wire.desk import AtOnce, serve_desk
from wire.errors import UnavailableError
from wire.messages import Job, Matches, Recalled, Request
from wire.step import Step

pytestmark = pytest.mark.anyio

HISTORY, TOKENIZER, PREFIX, END = topics.history(0), topics.tokenizer(0, "m"), topics.prefix(0, "m"), "hr:{p0}:end"
QUIET = BusOptions(block_s=2.0, reply_timeout_s=60.0, claim_idle_s=3600.0)

Handler = Callable[[Job, dict[str, Any]], Awaitable[Step]]


async def recall(job: Job, record: dict[str, Any]) -> Step:
    assert record["request"].model == job.model
    return Step(to=TOKENIZER, fields={"recalled": Recalled(version=7)})


async def use(_job: Job, record: dict[str, Any]) -> Step:
    assert record["recalled"].version == 7
    return Step(to=END)


@asynccontextmanager
async def desks(
    bus: Bus,
    *,
    first: Handler = recall,
    second: Handler = use,
    room: int = 16,
    at_once: AtOnce | None = None,
    reads: list[str] | None = None,
) -> AsyncIterator[None]:
    """History and tokenizer in this process, both waiting for work."""
    for stream in (HISTORY, TOKENIZER):
        await bus.route.call(stream, "XGROUP", "CREATE", stream, stream.split(":")[2], "0", "MKSTREAM")
    async with anyio.create_task_group() as tasks:
        serve = functools.partial(serve_desk, bus, consumer="one")
        fields = ["request", "recalled"] if reads is None else reads
        await tasks.start(
            functools.partial(
                serve, name="tokenizer", streams=[TOKENIZER], handle=second, at_once=at_once,
                fields=["request", "recalled"],
            )
        )  # fmt: skip
        await tasks.start(
            functools.partial(serve, name="history", streams=[HISTORY], handle=first, fields=fields, concurrency=room)
        )
        await _both_wait(bus)
        yield
        tasks.cancel_scope.cancel()


async def _both_wait(bus: Bus) -> None:
    """Until both have looked at what was theirs before and block in a read."""
    with anyio.fail_after(60):
        while b"blocked_clients:2" not in await bus.route.call("", "INFO", "clients"):
            await anyio.sleep(0.002)


async def arrived(bus: Bus) -> str:
    with anyio.fail_after(60):
        [delivery] = await bus.consumer(END, group="g", name="end").read(1)
    await bus.finish(delivery)
    assert isinstance(delivery.message, Job)
    assert set(delivery.message.timings_ms) == {"history.wait", "history.work", "tokenizer.wait", "tokenizer.work"}
    return delivery.message.request_id


async def test_a_hop_within_a_process_is_one_round_trip(bus_url: str, make_job: Any) -> None:
    async with Bus.open(bus_url, QUIET) as bus, Bus.open(bus_url, QUIET) as edge:
        await bus.route.call(END, "XGROUP", "CREATE", END, "g", "0", "MKSTREAM")
        async with desks(bus), watched(bus_url) as commands:
            await edge.admit(make_job(), {"request": Request(model="m")}, to=HISTORY, ttl_s=60)
            assert await arrived(edge) == "r1"
        ours = [name for name in commands if name not in BESIDE and "end" not in name]
        assert [name for name in ours if name.startswith("HAND_OFF")] == ["HAND_OFF history", "HAND_OFF tokenizer"]
        assert "HMGET job" not in ours
        reads, looks = (sum(name.startswith(what) for name in ours) for what in ("XREADGROUP", "CLAIM"))
        assert reads < looks + 2, "a desk read for its job, and not because it looks round now and then"


@pytest.mark.parametrize("script", ["ADMIT", "HAND_OFF"])
async def test_a_job_whose_way_to_the_neighbour_was_cut_is_found_and_worked_on_once(
    bus: Bus, make_relay: Any, make_job: Any, script: str
) -> None:
    relay, text = make_relay(), getattr(scripts, script).text.encode()
    worked: list[str] = []
    cut: list[bytes] = []

    async def cut_first(command: list[bytes]) -> None:
        if command[:2] == [b"EVAL", text] and not cut:  # an empty server does not know it by its digest yet
            cut.append(script.encode())
            raise anyio.EndOfStream

    async def second(job: Job, record: dict[str, Any]) -> Step:
        worked.append(job.request_id)
        return await use(job, record)

    options = BusOptions(block_s=0.1, claim_idle_s=3600.0)
    async with anyio.create_task_group() as tasks:
        await tasks.start(relay.serve)
        async with Bus.open(relay.url, options) as far, desks(far, second=second):
            relay.after = cut_first
            await far.admit(make_job(), {"request": Request(model="m")}, to=HISTORY, ttl_s=60)
            assert await arrived(bus) == "r1"
        tasks.cancel_scope.cancel()
    assert cut
    assert worked == ["r1"]
    assert await bus.route.call(HISTORY, "XLEN", HISTORY) == await bus.route.call(TOKENIZER, "XLEN", TOKENIZER) == 0


async def test_a_neighbour_without_room_is_not_handed_anything(bus: Bus, make_job: Any) -> None:
    busy, release = anyio.Event(), anyio.Event()

    async def first(job: Job, record: dict[str, Any]) -> Step:
        busy.set()
        await release.wait()
        return await recall(job, record)

    async with desks(bus, first=first, room=2):
        await bus.admit(make_job("r1"), {"request": Request(model="m")}, to=HISTORY, ttl_s=60)
        await busy.wait()
        await bus.admit(make_job("r2"), {"request": Request(model="m")}, to=HISTORY, ttl_s=60)
        with anyio.fail_after(60):  # one was handed over, the other comes by a read
            while (await bus.route.call(HISTORY, "XPENDING", HISTORY, "history"))[0] != 2:
                await anyio.sleep(0.002)
        await bus.admit(make_job("r3"), {"request": Request(model="m")}, to=HISTORY, ttl_s=60)
        pending = await bus.route.call(HISTORY, "XPENDING", HISTORY, "history")
        assert pending[0] == 2  # left to a sibling with room
        release.set()
        assert {await arrived(bus), await arrived(bus), await arrived(bus)} == {"r1", "r2", "r3"}


async def test_what_has_waited_longer_comes_first_and_without_a_record_that_is_not_its_own(
    bus: Bus, make_job: Any
) -> None:
    reader = bus.consumer(HISTORY, group="g", name="one")
    await bus.route.call(HISTORY, "XGROUP", "CREATE", HISTORY, "g", "0", "MKSTREAM")
    await bus.admit(make_job("older"), {"request": Request(model="m")}, to=HISTORY, ttl_s=60)
    got: list[Delivery] = []
    neighbour = Neighbour(reader, ["request"], has_room=lambda: True, accept=got.append)
    with ExitStack() as stack:
        stack.enter_context(bus.neighbours.sits(HISTORY, neighbour))
        await bus.admit(make_job("newer"), {"request": Request(model="n")}, to=HISTORY, ttl_s=60)
        await bus.admit(make_job("third"), {"request": Request(model="o")}, to=HISTORY, ttl_s=60)
    assert [delivery.message.request_id for delivery in got] == ["older", "newer"]  # type: ignore[union-attr]
    assert [delivery.record for delivery in got] == [None, None]


async def test_a_desk_that_leaves_gives_back_what_it_was_handed(bus: Bus, make_job: Any) -> None:
    reader = bus.consumer(HISTORY, group="history", name="leaving")
    await bus.route.call(HISTORY, "XGROUP", "CREATE", HISTORY, "history", "0", "MKSTREAM")
    neighbour = Neighbour(reader, ["request"], has_room=lambda: True, accept=lambda _: None)
    with bus.neighbours.sits(HISTORY, neighbour):
        await bus.admit(make_job(), {"request": Request(model="m")}, to=HISTORY, ttl_s=60)
    await reader.leave()
    [again] = await bus.consumer(HISTORY, group="history", name="staying").read(1)
    assert again.times_delivered == 1


def use_at_once(_job: Job, record: dict[str, Any]) -> Step | None:
    assert record.get("recalled") == Recalled(version=7)
    return Step(to=END, fields={"matches": Matches()})


async def test_a_job_goes_past_a_desk_that_need_not_wait(bus_url: str, make_job: Any) -> None:
    async def never(_job: Job, _record: dict[str, Any]) -> Step:
        raise AssertionError("it came to the desk")

    async with Bus.open(bus_url, QUIET) as bus, Bus.open(bus_url, QUIET) as edge:
        await bus.route.call(END, "XGROUP", "CREATE", END, "g", "0", "MKSTREAM")
        async with desks(bus, second=never, at_once=use_at_once), watched(bus_url) as commands:
            await edge.admit(make_job(), {"request": Request(model="m")}, to=HISTORY, ttl_s=60)
            assert await arrived(edge) == "r1"  # with the times of both desks
        assert [name for name in commands if name.startswith("HAND_OFF")] == ["HAND_OFF history"]
        record = await edge.record(0, "r1", "recalled", "matches")
        assert record == {"recalled": Recalled(version=7), "matches": Matches()}


def waits(_job: Job, _record: dict[str, Any]) -> None:
    return None


def fails(_job: Job, _record: dict[str, Any]) -> Step:
    raise UnavailableError("not now")


@pytest.mark.parametrize(
    ("at_once", "reads"),
    [(waits, None), (fails, None), (use_at_once, [])],
    ids=["waits", "fails", "wants more"],
)
async def test_a_job_does_not_go_past_a_desk_that_waits_fails_or_wants_more_of_the_record(
    bus: Bus, make_job: Any, at_once: AtOnce, reads: list[str] | None
) -> None:
    worked: list[str] = []

    async def first(_job: Job, _record: dict[str, Any]) -> Step:
        return Step(to=TOKENIZER, fields={"recalled": Recalled(version=7)})

    async def second(job: Job, record: dict[str, Any]) -> Step:
        worked.append(job.request_id)
        return await use(job, record)

    async with desks(bus, first=first, second=second, at_once=at_once, reads=reads):
        await bus.admit(make_job(), {"request": Request(model="m")}, to=HISTORY, ttl_s=60)
        assert await arrived(bus) == "r1"
    assert worked == ["r1"]


async def test_a_job_does_not_overtake_those_that_wait_at_a_desk(bus: Bus, make_job: Any) -> None:
    waiting, release = anyio.Event(), anyio.Event()
    ready = False
    placed: list[str] = []

    def at_once(job: Job, _record: dict[str, Any]) -> Step | None:
        if not ready:
            return None
        placed.append(job.request_id)
        return Step(to=END)

    async def second(job: Job, _record: dict[str, Any]) -> Step:
        waiting.set()
        await release.wait()
        placed.append(job.request_id)
        return Step(to=END)

    async with desks(bus, second=second, at_once=at_once):
        await bus.admit(make_job("r1"), {"request": Request(model="m")}, to=HISTORY, ttl_s=60)
        await waiting.wait()
        ready = True
        await bus.admit(make_job("r2"), {"request": Request(model="m")}, to=HISTORY, ttl_s=60)
        with anyio.fail_after(60):
            while await bus.route.call(TOKENIZER, "XLEN", TOKENIZER) < 2 and not placed:
                await anyio.sleep(0.002)
        assert placed == []
        release.set()
        assert {await arrived(bus), await arrived(bus)} == {"r1", "r2"}
    assert placed[0] == "r1"
