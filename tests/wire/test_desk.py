"""The loop of a desk: what it hands on, what it times, how it fails, and how much it takes at once."""

from __future__ import annotations

import functools
import gc
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.wire.conftest import fall_silent
from wire import telemetry, topics
from wire.bus import Bus, BusOptions, Delivery
from wire.desk import serve_desk
from wire.errors import ContextLengthExceededError, UnavailableError
from wire.messages import Failure, HistoryCall, HistoryReply, Job, Recalled, Request
from wire.step import Step

pytestmark = pytest.mark.anyio

HISTORY, TOKENIZER, EDGE = topics.history(0), topics.tokenizer(0, "m"), topics.edge("e")
PARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    telemetry.setup("test", exporter=exporter)
    yield exporter
    telemetry.shutdown()


@asynccontextmanager
async def desk(bus: Bus, handle: Any, streams: Sequence[str] = (HISTORY,), **more: Any) -> AsyncIterator[None]:
    serve = functools.partial(serve_desk, bus, name="history", streams=streams, consumer="one", handle=handle, **more)
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(60):
            await tasks.start(serve)
            yield
        tasks.cancel_scope.cancel()


async def onward(_job: Job, _record: dict[str, Any]) -> Step:
    return Step(to=TOKENIZER)


async def arrived(bus: Bus, stream: str = TOKENIZER) -> Job:
    [delivery] = await bus.consumer(stream, group="g", name="end").read(1)
    await bus.finish(delivery)
    assert isinstance(delivery.message, Job)
    return delivery.message


async def told(bus: Bus) -> Any:
    async with aclosing(bus.inbox(EDGE)) as inbox:
        return await anext(inbox)


async def length(bus: Bus, stream: str) -> int:
    return int(await bus.route.call(stream, "XLEN", stream))


async def test_a_job_goes_on_with_its_fields_and_with_the_time_it_waited_and_took(bus: Bus, make_job: Any) -> None:
    took_ms: list[float] = []

    async def handle(_job: Job, record: dict[str, Any]) -> Step:
        assert record == {"request": Request(model="m")}
        began = time.perf_counter()
        await anyio.sleep(0.02)
        took_ms.append((time.perf_counter() - began) * 1e3)
        return Step(to=TOKENIZER, fields={"recalled": Recalled(version=3)})

    job = make_job(timings_ms={"edge.work": 1.0})
    await bus.admit(job, {"request": Request(model="m")}, to=HISTORY, ttl_s=60)
    admitted_at = time.time()
    await anyio.sleep(0.03)
    took_ms.append((time.time() - admitted_at) * 1e3)  # a timer may be a millisecond early
    async with desk(bus, handle):
        found = await arrived(bus)
    timings = dict(found.timings_ms)
    assert msgspec.structs.replace(found, timings_ms={}) == msgspec.structs.replace(job, timings_ms={})
    assert timings.pop("edge.work") == 1.0
    assert 0 < took_ms[0] <= timings.pop("history.wait") < 100_000
    assert 0 < took_ms[1] <= timings.pop("history.work") < 100_000
    assert timings == {}
    assert (await bus.record(0, "r1", "recalled"))["recalled"].version == 3


async def test_a_desk_may_change_the_job_and_names_the_fields_it_reads(bus: Bus, make_job: Any) -> None:
    async def handle(job: Job, record: dict[str, Any]) -> Step:
        assert set(record) == {"request"}
        return Step(to=TOKENIZER, job=msgspec.structs.replace(job, attempt=4))

    fields = {"request": Request(model="m"), "recalled": Recalled()}
    await bus.admit(make_job(), fields, to=HISTORY, ttl_s=60)
    async with desk(bus, handle, fields=["request", "prompt"]):
        assert (await arrived(bus)).attempt == 4


async def test_a_job_may_end_at_a_desk(bus: Bus, make_job: Any) -> None:
    handled = anyio.Event()

    async def handle(_job: Job, _record: dict[str, Any]) -> None:
        handled.set()

    await bus.admit(make_job(), {}, to=HISTORY, ttl_s=60)
    async with desk(bus, handle):
        await handled.wait()
        while await length(bus, HISTORY):
            await anyio.sleep(0.001)
    assert await length(bus, EDGE) == 0


async def test_an_error_of_ours_ends_the_job_at_once(bus: Bus, make_job: Any) -> None:
    async def handle(_job: Job, _record: dict[str, Any]) -> Step:
        raise ContextLengthExceededError("too long", param="messages")

    await bus.admit(make_job(), {}, to=HISTORY, ttl_s=60)
    async with desk(bus, handle):
        failure = await told(bus)
    assert failure == Failure(
        request_id="r1",
        attempt=0,
        code="context_length_exceeded",
        message="too long",
        param="messages",
        desk="history",
    )


async def test_what_an_error_of_ours_has_passed_on_its_way_does_not_wait_for_the_garbage_collector(
    bus: Bus, make_job: Any
) -> None:
    texts: list[weakref.ref[set[int]]] = []

    def refuse() -> Step:
        text = {1}
        texts.append(weakref.ref(text))
        raise ContextLengthExceededError("too long")

    async def handle(_job: Job, _record: dict[str, Any]) -> Step:
        return await anyio.to_thread.run_sync(refuse)

    await bus.admit(make_job(), {}, to=HISTORY, ttl_s=60)
    gc.disable()
    try:
        async with desk(bus, handle):
            await told(bus)
        assert [text() for text in texts] == [None]
    finally:
        gc.enable()


async def test_any_other_error_gives_the_job_back_and_the_second_try_may_succeed(bus: Bus, make_job: Any) -> None:
    tries: list[str] = []

    async def handle(job: Job, _record: dict[str, Any]) -> Step:
        tries.append(job.request_id)
        if len(tries) == 1:
            raise RuntimeError("a passing fault")
        return Step(to=TOKENIZER)

    await bus.admit(make_job(), {}, to=HISTORY, ttl_s=60)
    async with desk(bus, handle):
        assert (await arrived(bus)).request_id == "r1"
    assert tries == ["r1", "r1"]


async def test_three_errors_set_the_job_aside_and_tell_the_edge_without_a_word_of_the_request(
    bus: Bus, make_job: Any
) -> None:
    tries: list[str] = []

    async def handle(job: Job, _record: dict[str, Any]) -> Step:
        tries.append(job.request_id)
        raise RuntimeError("secret prompt")

    await bus.admit(make_job(), {}, to=HISTORY, ttl_s=60)
    async with desk(bus, handle):
        failure = await told(bus)
        while await length(bus, HISTORY):
            await anyio.sleep(0.001)
    assert len(tries) == 3
    assert failure.code == "dead_letter"
    assert "secret" not in failure.message
    assert await length(bus, topics.dead_letter(0)) == 1


async def test_a_job_past_its_deadline_is_not_worked_on(bus: Bus, make_job: Any) -> None:
    async def handle(_job: Job, _record: dict[str, Any]) -> Step:
        raise AssertionError("worked on")

    await bus.admit(make_job(deadline=time.time() - 1), {}, to=HISTORY, ttl_s=60)
    async with desk(bus, handle):
        assert (await told(bus)).code == "deadline_exceeded"


async def test_work_stops_when_the_deadline_passes(bus: Bus, make_job: Any) -> None:
    async def handle(_job: Job, _record: dict[str, Any]) -> Step:
        await anyio.sleep_forever()
        return Step(to=TOKENIZER)

    await bus.admit(make_job(deadline=time.time() + 0.2), {}, to=HISTORY, ttl_s=60)
    async with desk(bus, handle):
        assert (await told(bus)).code == "deadline_exceeded"


async def test_a_cancelled_job_is_not_worked_on(bus: Bus, make_job: Any) -> None:
    async def handle(_job: Job, _record: dict[str, Any]) -> Step:
        raise AssertionError("worked on")

    await bus.admit(make_job(), {}, to=HISTORY, ttl_s=60)
    await bus.cancel(0, "r1")
    async with desk(bus, handle):
        assert (await told(bus)).code == "request_cancelled"


async def test_messages_that_are_no_jobs_go_to_their_own_handler(bus: Bus) -> None:
    async def on_message(delivery: Delivery) -> None:
        assert isinstance(delivery.message, HistoryCall)
        await bus.send(delivery.message.edge, HistoryReply(call_id=delivery.message.call_id), maxlen=10)
        await bus.finish(delivery)

    call = HistoryCall(call_id="c1", edge=EDGE, op="list_conversations", tenant="")
    await bus.send(HISTORY, call, maxlen=10)
    async with desk(bus, onward, on_message=on_message):
        assert await told(bus) == HistoryReply(call_id="c1")


async def test_a_message_that_a_desk_does_not_take_is_set_aside(bus: Bus) -> None:
    await bus.send(HISTORY, HistoryCall(call_id="c1", edge=EDGE, op="x", tenant=""), maxlen=10)
    async with desk(bus, onward):
        while not await length(bus, topics.dead_letter(0)):
            await anyio.sleep(0.001)
    assert await length(bus, HISTORY) == 0


class Held:
    """Holds jobs until they are released, and counts them."""

    def __init__(self) -> None:
        self.num = self.most = 0
        self.released = anyio.Event()

    async def handle(self, job: Job, _record: dict[str, Any]) -> Step:
        self.num += 1
        self.most = max(self.most, self.num)
        await self.released.wait()
        self.num -= 1
        return Step(to=topics.tokenizer(job.partition, job.model))


async def test_no_more_jobs_are_worked_on_at_a_time_than_allowed_and_the_rest_is_left_to_siblings(
    bus: Bus, make_job: Any
) -> None:
    held = Held()
    for number in range(10):
        await bus.admit(make_job(f"r{number}"), {}, to=HISTORY, ttl_s=60)
    async with desk(bus, held.handle, concurrency=3):
        while held.num < 3:
            await anyio.sleep(0.001)
        sibling = await bus.consumer(HISTORY, group="history", name="two").read(10)
        assert len(sibling) == 7
        held.released.set()
        for _ in range(3):
            await arrived(bus)
    assert held.most == 3


async def test_what_several_streams_bring_beyond_the_limit_waits_for_a_worker(bus: Bus, make_job: Any) -> None:
    held = Held()
    streams = [topics.history(partition) for partition in range(3)]
    async with desk(bus, held.handle, streams, concurrency=2):
        while b"blocked_clients:3" not in await bus.route.call("", "INFO", "clients"):
            await anyio.sleep(0.001)  # each stream is waited on, with room for one
        for partition, stream in enumerate(streams):
            await bus.admit(make_job(f"r{partition}", partition=partition), {}, to=stream, ttl_s=60)
        for stream in streams:
            while (await bus.route.call(stream, "XPENDING", stream, "history"))[0] != 1:
                await anyio.sleep(0.001)
        held.released.set()
        for partition in range(3):
            assert (await arrived(bus, topics.tokenizer(partition, "m"))).request_id == f"r{partition}"
    assert held.most == 2


async def test_a_slow_job_is_kept_from_siblings_again_and_again(bus_url: str, make_job: Any) -> None:
    options = BusOptions(block_s=0.05, claim_idle_s=0.3)

    async def handle(_job: Job, _record: dict[str, Any]) -> Step:
        for _ in range(3):
            await fall_silent(bus, HISTORY, "history", "one")
            while (await bus.route.call(HISTORY, "XPENDING", HISTORY, "history", "-", "+", 1))[0][2] > 7_000_000:
                await anyio.sleep(0.001)
        return Step(to=TOKENIZER)

    async with Bus.open(bus_url, options) as bus:
        await bus.admit(make_job(), {}, to=HISTORY, ttl_s=60)
        async with desk(bus, handle, concurrency=1):
            assert (await arrived(bus)).request_id == "r1"


async def test_a_desk_that_stops_gives_its_work_to_a_sibling_at_once(
    bus_url: str, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wire.desk._LEAVE_S", 60.0)
    working = anyio.Event()

    async def handle(_job: Job, _record: dict[str, Any]) -> Step:
        working.set()
        await anyio.sleep_forever()
        return Step(to=TOKENIZER)

    async with Bus.open(bus_url, BusOptions(block_s=0.1, claim_idle_s=3600.0)) as bus:
        await bus.admit(make_job(), {}, to=HISTORY, ttl_s=60)
        async with desk(bus, handle):
            await working.wait()
        with anyio.fail_after(60):
            [delivery] = await bus.consumer(HISTORY, group="history", name="two").read(1)
        assert delivery.times_delivered == 1


async def test_a_full_next_desk_ends_the_job_as_overloaded(
    bus: Bus, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = Bus.hand_off.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "maxlen", 0)
    await bus.admit(make_job(), {}, to=HISTORY, ttl_s=60)
    async with desk(bus, onward):
        assert (await told(bus)).code == "overloaded"


async def test_a_bus_that_goes_away_in_mid_job_does_not_end_the_desk(
    bus: Bus, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_off, lost = Bus.hand_off, list[str]()

    async def away_once(self: Bus, *args: Any, **kwargs: Any) -> Any:
        if not lost:
            lost.append("away")
            monkeypatch.setattr(Bus, "fail", away)
            raise UnavailableError("the bus is away")
        return await hand_off(self, *args, **kwargs)

    async def away(*_: Any, **__: Any) -> None:
        raise UnavailableError("the bus is away")

    monkeypatch.setattr(Bus, "hand_off", away_once)
    await bus.admit(make_job(), {}, to=HISTORY, ttl_s=60)
    async with desk(bus, onward):
        assert (await arrived(bus)).request_id == "r1"


async def test_each_job_is_one_span_under_the_context_in_its_envelope(
    bus: Bus, make_job: Any, spans: InMemorySpanExporter
) -> None:
    job = make_job(traceparent=PARENT, tracestate="vendor=1", attempt=2)
    await bus.admit(job, {}, to=HISTORY, ttl_s=60)
    async with desk(bus, onward):
        found = await arrived(bus)
    assert (found.traceparent, found.tracestate) == (PARENT, "vendor=1")
    [span] = spans.get_finished_spans()
    assert span.name == "history m"
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == "a" * 32
    assert f"{span.parent.span_id:016x}" == "b" * 16
    attributes = dict(span.attributes or {})
    assert attributes.pop(telemetry.WAIT_MS) >= 0  # type: ignore[operator]
    assert attributes.pop(telemetry.WORK_MS) > 0  # type: ignore[operator]
    assert attributes == {"gen_ai.request.model": "m", "headrace.request.id": "r1", "headrace.attempt": 2}


async def test_a_failed_job_marks_its_span_with_the_stable_code_and_nothing_of_the_message(
    bus: Bus, make_job: Any, spans: InMemorySpanExporter
) -> None:
    async def handle(_job: Job, _record: dict[str, Any]) -> Step:
        raise ContextLengthExceededError("secret prompt")

    await bus.admit(make_job(), {}, to=HISTORY, ttl_s=60)
    async with desk(bus, handle):
        await told(bus)
    [span] = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "context_length_exceeded"
    assert "secret" not in span.to_json()
