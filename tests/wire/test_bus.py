"""The ring's contract, on the real server: admission, hand-off, cancelling, ending."""

from __future__ import annotations

import time
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import anyio
import pytest
import redis

from tests.consume import consume
from tests.wire.conftest import fall_silent
from wire import topics
from wire.bus import Bus, Delivery, HandOff
from wire.errors import ContextLengthExceededError, InternalError, OverloadedError, RequestCancelledError
from wire.messages import Failure, Placement, Prompt, Recalled, Request, Turn

pytestmark = pytest.mark.anyio

HISTORY, TOKENIZER = topics.history(0), topics.tokenizer(0, "m")
REQUEST = {"request": Request(model="m")}


async def take(bus: Bus, stream: str, *, group: str = "desk", name: str = "one") -> Delivery:
    with anyio.fail_after(60):
        return (await bus.consumer(stream, group=group, name=name).read(1))[0]


async def letter(bus: Bus, stream: str) -> Any:
    with anyio.fail_after(60):
        async with aclosing(bus.inbox(stream)) as inbox:
            return await anext(inbox)


async def length(bus: Bus, stream: str) -> int:
    return int(await bus.route.call(stream, "XLEN", stream))


async def test_a_job_passes_with_its_record_from_admission_over_a_desk_to_the_next(bus: Bus, make_job: Any) -> None:
    job, began = make_job(), time.time()
    assert await bus.admit(job, REQUEST, to=HISTORY, ttl_s=60)
    delivery = await take(bus, HISTORY)
    assert delivery.message == job
    assert delivery.times_delivered == 1
    assert began - 1 < delivery.published_at < time.time() + 1
    moved = make_job(timings_ms={"history.work": 1.0})
    assert await bus.hand_off(delivery, moved, to=TOKENIZER, fields={"recalled": Recalled(version=7)}) is HandOff.DONE
    assert (await take(bus, TOKENIZER)).message == moved
    record = await bus.record(0, "r1")
    assert record == {"request": Request(model="m"), "recalled": Recalled(version=7)}
    assert await length(bus, HISTORY) == 0


async def test_a_request_is_admitted_once(bus: Bus, make_job: Any) -> None:
    assert await bus.admit(make_job(), REQUEST, to=HISTORY, ttl_s=60)
    assert not await bus.admit(make_job(), {"request": Request(model="other")}, to=HISTORY, ttl_s=60)
    assert await length(bus, HISTORY) == 1
    assert (await bus.record(0, "r1", "request"))["request"].model == "m"


async def test_a_full_first_desk_refuses_admission_and_leaves_nothing_behind(bus: Bus, make_job: Any) -> None:
    for number in range(3):
        await bus.admit(make_job(f"r{number}"), {}, to=HISTORY, ttl_s=60, maxlen=3)
    with pytest.raises(OverloadedError) as refused:
        await bus.admit(make_job("r3"), {}, to=HISTORY, ttl_s=60, maxlen=3)
    assert refused.value.retry_after_s
    key = topics.job_record(0, "r3")
    assert await bus.route.call(key, "EXISTS", key) == 0


async def test_two_consumers_finishing_the_same_job_hand_it_on_once(bus: Bus, make_job: Any) -> None:
    job = make_job()
    await bus.admit(job, {}, to=HISTORY, ttl_s=60)
    slow = await take(bus, HISTORY, name="slow")
    await fall_silent(bus, HISTORY, "desk", "slow")
    quick = await take(bus, HISTORY, name="quick")  # claimed
    assert quick.entry_id == slow.entry_id
    assert quick.times_delivered == 2
    assert await bus.hand_off(slow, job, to=TOKENIZER, fields={"recalled": Recalled(version=1)}) is HandOff.DONE
    assert await bus.hand_off(quick, job, to=TOKENIZER, fields={"recalled": Recalled(version=2)}) is HandOff.LOST
    assert await length(bus, TOKENIZER) == 1
    assert (await bus.record(0, "r1", "recalled"))["recalled"].version == 1


async def test_a_failure_that_comes_too_late_does_not_end_the_job(bus: Bus, make_job: Any) -> None:
    job = make_job()
    await bus.admit(job, {}, to=HISTORY, ttl_s=60)
    slow = await take(bus, HISTORY, name="slow")
    await fall_silent(bus, HISTORY, "desk", "slow")
    quick = await take(bus, HISTORY, name="quick")
    assert await bus.hand_off(quick, job, to=TOKENIZER) is HandOff.DONE
    await bus.fail(slow, InternalError("too late"), desk="history")
    assert await length(bus, job.edge) == 0
    onward = await take(bus, TOKENIZER)
    assert await bus.hand_off(onward, job, to=topics.prefix(0, "m")) is HandOff.DONE


async def test_a_job_cancelled_before_placement_ends_at_the_next_hand_off(bus: Bus, make_job: Any) -> None:
    job = make_job()
    await bus.admit(job, {}, to=HISTORY, ttl_s=60)
    delivery = await take(bus, HISTORY)
    assert await bus.cancel(0, "r1") is None
    assert await bus.open_record(job) is None
    assert await bus.hand_off(delivery, job, to=TOKENIZER) is HandOff.CANCELLED
    assert await length(bus, TOKENIZER) == await length(bus, HISTORY) == 0
    assert (await letter(bus, job.edge)).code == "request_cancelled"


async def test_cancelling_a_placed_job_tells_where_it_is(bus: Bus, make_job: Any) -> None:
    job = make_job()
    await bus.admit(job, {}, to=HISTORY, ttl_s=60)
    placement = Placement(replica_id="m-a-1", attempt=0)
    await bus.hand_off(await take(bus, HISTORY), job, to=topics.replica(0, "m-a-1"), fields={"placement": placement})
    assert await bus.cancel(0, "r1") == placement
    assert await bus.cancel(0, "unknown") is None


async def test_finishing_ends_the_job_for_good(bus: Bus, make_job: Any) -> None:
    job = make_job()
    await bus.admit(job, {"placement": Placement(replica_id="a", attempt=0)}, to=HISTORY, ttl_s=60)
    delivery = await take(bus, HISTORY)
    assert await bus.finish(delivery)
    assert not await bus.finish(delivery)
    assert await bus.cancel(0, "r1") is None
    await bus.fail(job, InternalError("late"), desk="edge")
    assert await length(bus, job.edge) == 0


async def test_a_failed_job_reaches_its_edge_with_code_and_param(bus: Bus, make_job: Any) -> None:
    job = make_job(attempt=2)
    await bus.admit(job, {}, to=HISTORY, ttl_s=60)
    error = ContextLengthExceededError("4 tokens too long", param="messages")
    await bus.fail(await take(bus, HISTORY), error, desk="tokenizer")
    assert await letter(bus, job.edge) == Failure(
        request_id="r1",
        attempt=2,
        code="context_length_exceeded",
        message="4 tokens too long",
        param="messages",
        desk="tokenizer",
    )
    assert await length(bus, HISTORY) == 0


async def test_the_first_failure_of_a_job_counts(bus: Bus, make_job: Any) -> None:
    job = make_job()
    await bus.admit(job, {}, to=HISTORY, ttl_s=60)
    delivery = await take(bus, HISTORY)
    await bus.fail(job, InternalError("first"), desk="a")
    assert await bus.hand_off(delivery, job, to=TOKENIZER) is HandOff.CANCELLED
    messages = [Failure(request_id="r1", attempt=0, code="internal_error", message="first", desk="a")]
    async with aclosing(bus.inbox(job.edge)) as inbox:
        assert [await anext(inbox) for _ in range(2)] == 2 * messages  # whoever ends it again says the same
    assert await length(bus, TOKENIZER) == 0


async def test_a_full_next_desk_leaves_the_job_with_its_holder(bus: Bus, make_job: Any) -> None:
    job = make_job()
    await bus.admit(make_job("other"), {}, to=TOKENIZER, ttl_s=60)
    await bus.admit(job, {}, to=HISTORY, ttl_s=60)
    delivery = await take(bus, HISTORY)
    with pytest.raises(OverloadedError):
        await bus.hand_off(delivery, job, to=TOKENIZER, maxlen=1)
    assert await length(bus, TOKENIZER) == 1
    assert await length(bus, HISTORY) == 1
    await bus.fail(delivery, OverloadedError("full"), desk="history")
    assert (await letter(bus, job.edge)).code == "overloaded"


async def test_an_expired_record_does_not_come_back_without_an_expiry(bus: Bus, make_job: Any) -> None:
    job = make_job()
    key = topics.job_record(0, "r1")
    await bus.admit(job, REQUEST, to=HISTORY, ttl_s=60)
    assert 0 < await bus.route.call(key, "PTTL", key) <= 60_000
    delivery = await take(bus, HISTORY)
    await bus.route.call(key, "DEL", key)
    assert not await bus.update_record(0, "r1", {"recalled": Recalled()})
    assert await bus.hand_off(delivery, job, to=TOKENIZER, fields={"recalled": Recalled()}) is HandOff.CANCELLED
    assert await bus.route.call(key, "EXISTS", key) == 0
    assert isinstance(await letter(bus, job.edge), Failure)


async def test_a_hand_off_keeps_the_record_s_expiry(bus: Bus, make_job: Any) -> None:
    key = topics.job_record(0, "r1")
    await bus.admit(make_job(), REQUEST, to=HISTORY, ttl_s=60)
    await bus.hand_off(await take(bus, HISTORY), make_job(), to=TOKENIZER, fields={"recalled": Recalled()})
    assert 0 < await bus.route.call(key, "PTTL", key) <= 60_000


async def test_record_fields_are_read_by_name_and_absent_ones_are_left_out(bus: Bus, make_job: Any) -> None:
    await bus.admit(make_job(), REQUEST, to=HISTORY, ttl_s=60)
    assert await bus.update_record(0, "r1", {"prompt": Prompt(token_ids=b"1234", num_tokens=1)})
    assert set(await bus.record(0, "r1", "prompt", "matches")) == {"prompt"}
    assert set(await bus.record(0, "r1")) == {"request", "prompt"}
    assert await bus.record(0, "unknown") == {}


async def test_the_fate_of_a_job_is_told_to_whoever_was_not_there(bus: Bus, make_job: Any) -> None:
    job = make_job()
    assert not (await bus.fate(0, "r1")).known
    await bus.admit(job, REQUEST, to=HISTORY, ttl_s=60)
    fate = await bus.fate(0, "r1")
    assert fate.known and not fate.over and not fate.cancelled and fate.placement is None
    await bus.update_record(0, "r1", {"placement": Placement(replica_id="a", attempt=0)})
    await bus.cancel(0, "r1")
    await bus.fail(await take(bus, HISTORY), OverloadedError("full"), desk="history")
    fate = await bus.fate(0, "r1")
    assert fate.over and fate.cancelled and fate.failure is not None and fate.placement is not None
    assert (fate.failure.code, fate.placement.replica_id) == ("overloaded", "a")


async def test_a_record_field_takes_only_its_own_type(bus: Bus, make_job: Any) -> None:
    with pytest.raises(TypeError, match="prompt"):
        await bus.admit(make_job(), {"prompt": Recalled()}, to=HISTORY, ttl_s=60)
    with pytest.raises(TypeError, match="nonsense"):
        await bus.update_record(0, "r1", {"nonsense": Recalled()})


async def test_jobs_arrive_in_the_order_of_admission(bus: Bus, make_job: Any) -> None:
    for number in range(40):
        await bus.admit(make_job(f"r{number}"), {}, to=HISTORY, ttl_s=60)
    ids = []
    async for delivery in consume(bus, HISTORY, group="desk", consumer="one"):
        ids.append(int(delivery.message.request_id[1:]))  # type: ignore[union-attr]
        await bus.finish(delivery)
        if len(ids) == 40:
            break
    assert all(one < other for one, other in pairwise(ids))


async def test_what_is_no_job_is_finished_without_a_record(bus: Bus, turn: Turn) -> None:
    await bus.send(HISTORY, turn, maxlen=10)
    delivery = await take(bus, HISTORY)
    assert delivery.message == turn
    await bus.fail(delivery, RequestCancelledError("no"), desk="history")
    assert await length(bus, HISTORY) == 0


async def test_streams_of_the_ring_never_expire(bus: Bus, make_job: Any) -> None:
    await bus.send(HISTORY, make_job(), maxlen=10)
    assert await bus.route.call(HISTORY, "PTTL", HISTORY) == -1


async def test_a_failure_for_a_full_inbox_is_dropped_and_counted_and_the_job_still_ends(
    bus: Bus, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wire.bus.endings.FAILURE_MAXLEN", 1)
    job = make_job()
    await bus.send(job.edge, job, maxlen=10)
    await bus.admit(job, {}, to=HISTORY, ttl_s=60)
    await bus.fail(await take(bus, HISTORY), InternalError("x"), desk="history")
    assert bus.counts.num_failures_dropped == 1
    assert await length(bus, HISTORY) == 0


async def test_a_secret_is_made_once_for_the_deployment(bus: Bus, bus_url: str) -> None:
    async with Bus.open(bus_url) as other:
        assert await bus.secret("blocks") == await other.secret("blocks")
    assert len(await bus.secret("blocks")) == 32
    assert await bus.secret("blocks") != await bus.secret("pages")


async def test_only_commands_of_redis_7_0_are_used(bus: Bus, make_job: Any, bus_url: str) -> None:
    with redis.Redis.from_url(bus_url) as client:
        client.config_resetstat()
        job = make_job()
        await bus.admit(job, {}, to=HISTORY, ttl_s=60)
        await bus.hand_off(await take(bus, HISTORY), job, to=topics.replica(0, "a"))
        [(entry_id, _)] = await bus.open_work(0, "a")
        await bus.re_place(0, "a", entry_id, job, to=TOKENIZER, fields={})
        await bus.forget_replica(0, "a")
        await bus.cancel(0, "r1")
        await bus.hand_off(await take(bus, TOKENIZER), job, to=HISTORY)
        assert (await letter(bus, job.edge)).code == "request_cancelled"
        used = {name.removeprefix("cmdstat_").split("|")[0] for name in client.info("commandstats")}
        assert {"xack", "xdel", "xadd", "xautoclaim", "xreadgroup"} <= used
        for name in used:
            [about] = client.execute_command("COMMAND DOCS", name).values()
            assert tuple(int(part) for part in about[b"since"].split(b".")) <= (7, 0, 0), name
