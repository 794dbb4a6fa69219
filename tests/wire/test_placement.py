"""What the balancer may do with a dead replica's open work."""

from __future__ import annotations

from typing import Any

import pytest

from wire import topics
from wire.bus import Bus
from wire.errors import InternalError, OverloadedError
from wire.messages import Failure, Job, Placement

pytestmark = pytest.mark.anyio

OLD, NEW = "m-old-1", "m-new-2"
OLD_STREAM, NEW_STREAM = topics.replica(0, OLD), topics.replica(0, NEW)
MOVED = {"placement": Placement(replica_id=NEW, attempt=1)}


async def place(bus: Bus, job: Job) -> Any:
    await bus.admit(job, {"placement": Placement(replica_id=OLD, attempt=0)}, to=OLD_STREAM, ttl_s=60)
    [delivery] = await bus.consumer(OLD_STREAM, group="replica", name=OLD).read(1)
    return delivery


async def length(bus: Bus, stream: str) -> int:
    return int(await bus.route.call(stream, "XLEN", stream))


async def test_open_work_is_what_was_placed_and_not_finished(bus: Bus, make_job: Any) -> None:
    for number in range(300):
        await bus.admit(make_job(f"r{number}"), {}, to=OLD_STREAM, ttl_s=60)
    reader = bus.consumer(OLD_STREAM, group="replica", name=OLD)
    for delivery in await reader.read(10):
        await bus.finish(delivery)
    work = await bus.open_work(0, OLD)
    assert [job.request_id for _, job in work] == [f"r{number}" for number in range(10, 300)]
    assert await bus.open_work(0, "nobody") == []


async def test_a_job_is_placed_again_once_and_its_old_replica_can_no_longer_end_it(bus: Bus, make_job: Any) -> None:
    job = make_job()
    stale = await place(bus, job)
    [(entry_id, found)] = await bus.open_work(0, OLD)
    again = make_job(attempt=1)
    assert found == job
    assert await bus.re_place(0, OLD, entry_id, again, to=NEW_STREAM, fields=MOVED)
    assert not await bus.re_place(0, OLD, entry_id, again, to=NEW_STREAM, fields=MOVED)
    assert [job for _, job in await bus.open_work(0, NEW)] == [again]
    assert (await bus.record(0, "r1", "placement"))["placement"].attempt == 1
    await bus.fail(stale, InternalError("woken from SIGSTOP"), desk="model")
    assert not await bus.finish(stale)
    assert await length(bus, job.edge) == 0
    assert await bus.cancel(0, "r1") == Placement(replica_id=NEW, attempt=1)


async def test_a_finished_job_is_not_placed_again(bus: Bus, make_job: Any) -> None:
    delivery = await place(bus, make_job())
    await bus.finish(delivery)
    assert not await bus.re_place(0, OLD, delivery.entry_id, make_job(attempt=1), to=NEW_STREAM, fields=MOVED)
    assert await length(bus, NEW_STREAM) == 0


async def test_a_cancelled_job_is_not_placed_again_and_its_edge_is_told(bus: Bus, make_job: Any) -> None:
    job = make_job()
    delivery = await place(bus, job)
    await bus.cancel(0, "r1")
    assert not await bus.re_place(0, OLD, delivery.entry_id, make_job(attempt=1), to=NEW_STREAM, fields=MOVED)
    failure = await anext(bus.inbox(job.edge))
    assert isinstance(failure, Failure)
    assert failure.code == "request_cancelled"
    assert await length(bus, OLD_STREAM) == await length(bus, NEW_STREAM) == 0


async def test_a_full_replica_refuses_and_the_job_stays_where_it_was(bus: Bus, make_job: Any) -> None:
    delivery = await place(bus, make_job())
    await bus.admit(make_job("other"), {}, to=NEW_STREAM, ttl_s=60)
    with pytest.raises(OverloadedError):
        await bus.re_place(0, OLD, delivery.entry_id, make_job(attempt=1), to=NEW_STREAM, fields=MOVED, maxlen=1)
    assert len(await bus.open_work(0, OLD)) == 1
    assert (await bus.record(0, "r1", "placement"))["placement"].attempt == 0


async def test_malformed_open_work_is_set_aside(bus: Bus, make_job: Any) -> None:
    await bus.route.call(OLD_STREAM, "XADD", OLD_STREAM, "*", "m", b"\xc1")
    await place(bus, make_job())
    assert [job.request_id for _, job in await bus.open_work(0, OLD)] == ["r1"]
    assert await length(bus, topics.dead_letter(0)) == 1


async def test_a_replica_is_forgotten_only_when_it_holds_nothing(bus: Bus, make_job: Any) -> None:
    delivery = await place(bus, make_job())
    assert not await bus.forget_replica(0, OLD)
    await bus.finish(delivery)
    assert await bus.forget_replica(0, OLD)
    assert not await bus.forget_replica(0, OLD)
