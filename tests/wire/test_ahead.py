"""Before a job is admitted the desks of the edge's own process do their part, where they can."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from loadtest.monitor import BESIDE, watched
from wire import topics
from wire.bus import Bus, BusOptions
from wire.desk import serve_desk
from wire.errors import ContextLengthExceededError, DeadlineExceededError
from wire.messages import Job, Matches, Prompt, Request
from wire.step import Step, go_ahead

pytestmark = pytest.mark.anyio

TOKENIZER, PREFIX, END = topics.tokenizer(0, "m"), topics.prefix(0, "m"), "hr:{p0}:end"
PROMPT = Prompt(token_ids=b"", num_tokens=0, block_root=b"r" * 16, max_tokens=1)
QUIET = BusOptions(block_s=2.0, reply_timeout_s=60.0, claim_idle_s=3600.0)


async def build(_job: Job, record: dict[str, Any]) -> Step:
    assert record["request"].model == "m"
    return Step(to=PREFIX, fields={"prompt": PROMPT})


def match(_job: Job, record: dict[str, Any]) -> Step:
    assert record["prompt"] == PROMPT
    return Step(to=END, fields={"matches": Matches()})


async def match_here(job: Job, record: dict[str, Any]) -> Step:
    return match(job, record)


@asynccontextmanager
async def desks(bus: Bus, tokenize: Any = build, concurrency: int = 1) -> AsyncIterator[None]:
    """A tokenizer that works ahead, and a prefix desk that need not wait and wants a field which few jobs have."""
    async with anyio.create_task_group() as tasks:
        serve = functools.partial(serve_desk, bus, concurrency=concurrency)
        await tasks.start(
            functools.partial(
                serve, name="prefix", streams=[PREFIX], handle=match_here, at_once=match,
                fields=["prompt", "recalled"],
            )
        )  # fmt: skip
        await tasks.start(
            functools.partial(
                serve, name="tokenizer", streams=[TOKENIZER], handle=tokenize, fields=["request"], ahead=True
            )
        )
        with anyio.fail_after(60):
            while (
                bus.neighbours.ahead(TOKENIZER) is None or bus.neighbours.past(PREFIX, {"prompt", "recalled"}) is None
            ):
                await anyio.sleep(0.002)
        yield
        tasks.cancel_scope.cancel()


def step() -> Step:
    return Step(to=TOKENIZER, fields={"request": Request(model="m")})


async def admit(bus: Bus, job: Job) -> None:
    job, on = await go_ahead(bus.neighbours, job, step())
    await bus.admit(job, on.fields, to=on.to, ttl_s=60)


async def arrived(bus: Bus) -> Job:
    with anyio.fail_after(60):
        [delivery] = await bus.consumer(END, group="g", name="end").read(1)
    await bus.finish(delivery)
    assert isinstance(delivery.message, Job)
    return delivery.message


async def test_a_job_comes_in_behind_the_desks_of_its_process_in_one_trip(bus_url: str, make_job: Any) -> None:
    async with Bus.open(bus_url, QUIET) as bus:
        await bus.route.call(END, "XGROUP", "CREATE", END, "g", "0", "MKSTREAM")
        async with desks(bus), watched(bus_url) as commands:
            await admit(bus, make_job())
        job = await arrived(bus)
        assert set(job.timings_ms) == {"tokenizer.wait", "tokenizer.work", "prefix.wait", "prefix.work"}
        record = await bus.record(0, "r1", "request", "prompt", "matches")
        assert record == {"request": Request(model="m"), "prompt": PROMPT, "matches": Matches()}
    ours = [name for name in commands if name not in BESIDE]
    assert [name for name in ours if name.startswith(("ADMIT", "HAND_OFF"))] == ["ADMIT job"]


async def test_what_the_desk_refuses_is_refused_at_once_and_never_admitted(bus: Bus, make_job: Any) -> None:
    async def too_long(_job: Job, _record: dict[str, Any]) -> Step:
        raise ContextLengthExceededError("too long", param="messages")

    async with desks(bus, too_long):
        with pytest.raises(ContextLengthExceededError):
            await admit(bus, make_job())
        with pytest.raises(DeadlineExceededError):
            await admit(bus, make_job("r2", deadline=time.time() - 1))
    assert await bus.record(0, "r1", "request") == {}


async def test_a_desk_that_fails_has_the_job_come_to_it(bus: Bus, make_job: Any) -> None:
    async def broken(_job: Job, _record: dict[str, Any]) -> Step:
        raise ZeroDivisionError

    async with desks(bus, broken):
        job = make_job()
        assert await go_ahead(bus.neighbours, job, step()) == (job, step())


async def test_a_busy_desk_leaves_jobs_to_its_siblings(bus: Bus, make_job: Any) -> None:
    busy, release = anyio.Event(), anyio.Event()

    async def slow(job: Job, record: dict[str, Any]) -> Step:
        busy.set()
        await release.wait()
        return await build(job, record)

    async with desks(bus, slow), anyio.create_task_group() as tasks:
        tasks.start_soon(admit, bus, make_job("r1"))
        await busy.wait()
        job = make_job("r2")
        assert await go_ahead(bus.neighbours, job, step()) == (job, step())
        release.set()
        assert (await arrived(bus)).request_id == "r1"
    async with desks(bus):  # and has room again
        await admit(bus, make_job("r3"))
        assert (await arrived(bus)).request_id == "r3"


async def test_a_client_that_leaves_meanwhile_leaves_nothing_behind(bus: Bus, make_job: Any) -> None:
    begun: list[str] = []

    async def endless(job: Job, _record: dict[str, Any]) -> Step:
        begun.append(job.request_id)
        tasks.cancel_scope.cancel()
        await anyio.sleep_forever()
        raise AssertionError

    async with desks(bus, endless):
        for request_id in ("r1", "r2"):  # there is room again
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(admit, bus, make_job(request_id))
    assert begun == ["r1", "r2"]
    assert await bus.record(0, "r1", "request") == {}
