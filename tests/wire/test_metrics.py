"""A process without HTTP still shows its desks' metrics, on a port of their own, and what waits on its streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from tests.ports import free_port
from wire import metrics, topics
from wire.bus import Bus
from wire.desk import serve_desk
from wire.errors import ContextLengthExceededError
from wire.exposition import serve_metrics
from wire.messages import Job
from wire.step import Step

pytestmark = pytest.mark.anyio

HISTORY, TOKENIZER = topics.history(0), topics.tokenizer(0, "m")


@asynccontextmanager
async def exposed() -> AsyncIterator[httpx.AsyncClient]:
    port = free_port()
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve_metrics, "127.0.0.1", port)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60.0, trust_env=False) as client:
            yield client
        tasks.cancel_scope.cancel()


async def scrape(client: httpx.AsyncClient, **labels: str) -> dict[str, float]:
    """Values by name and outcome, of what bears these labels."""
    reply = await client.get("/metrics")
    assert reply.status_code == 200
    samples = [s for family in text_string_to_metric_families(reply.text) for s in family.samples]
    found = [s for s in samples if labels.items() <= s.labels.items()]
    return {f"{s.name} {s.labels.get('outcome', '')}".strip(): s.value for s in found if "le" not in s.labels}


async def until_idle(bus: Bus) -> None:
    while await bus.route.call(HISTORY, "XLEN", HISTORY):
        await anyio.sleep(0.002)


async def test_jobs_are_counted_by_how_they_leave_a_desk_with_their_wait_and_work(bus: Bus, make_job: Any) -> None:
    tries: list[str] = []

    async def handle(job: Job, _record: dict[str, Any]) -> Step | None:
        tries.append(job.request_id)
        if job.request_id == "bad":
            raise ContextLengthExceededError("too long")
        if (job.request_id == "odd" and tries.count("odd") == 1) or job.request_id == "worst":
            raise RuntimeError("a fault of ours")
        return None if job.request_id == "ends" else Step(to=TOKENIZER)

    async with exposed() as client, anyio.create_task_group() as tasks:
        for name in ("good", "bad", "odd", "worst", "ends"):
            await bus.admit(make_job(name, model="counted"), {}, to=HISTORY, ttl_s=60)

        async def serve() -> None:
            await serve_desk(bus, name="d", streams=[HISTORY], consumer="one", handle=handle)

        tasks.start_soon(serve)
        await until_idle(bus)
        wanted = {
            "headrace_desk_jobs_total handed_on": 2.0,
            "headrace_desk_jobs_total finished": 1.0,
            "headrace_desk_jobs_total context_length_exceeded": 1.0,
            "headrace_desk_jobs_total retried": 3.0,
            "headrace_desk_jobs_total dead_letter": 1.0,
            "headrace_desk_wait_seconds_count": 4.0,
            "headrace_desk_work_seconds_count": 4.0,
        }
        with anyio.fail_after(60):
            while not wanted.items() <= (found := await scrape(client, desk="d", model="counted")).items():
                await anyio.sleep(0.01)
        assert found["headrace_desk_work_seconds_sum"] > 0
        tasks.cancel_scope.cancel()


async def test_what_waits_on_a_stream_is_shown_while_a_desk_reads_it(
    bus: Bus, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wire.metrics._LOOK_S", 60.0)
    working = anyio.Event()

    async def handle(_job: Job, _record: dict[str, Any]) -> Step:
        working.set()
        await anyio.sleep_forever()
        return Step(to=TOKENIZER)

    async with exposed() as client, anyio.create_task_group() as tasks:
        for number in range(3):
            await bus.admit(make_job(f"r{number}"), {}, to=HISTORY, ttl_s=60)

        async def serve() -> None:
            await serve_desk(bus, name="d", streams=[HISTORY], consumer="one", handle=handle, concurrency=1)

        tasks.start_soon(serve)
        await working.wait()
        found = await scrape(client, stream=HISTORY)
        assert (found["headrace_stream_length"], found["headrace_stream_pending"]) == (3, 1)
        assert 0 <= found["headrace_stream_oldest_seconds"] < 60
        assert (await scrape(client, partition="0"))["headrace_dead_letters"] == 0
        tasks.cancel_scope.cancel()
    assert b'stream="' not in await metrics.render()


async def test_two_scrapers_at_a_time_are_shown_all_streams_each(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, asked = bus.route.once, [anyio.Event() for _ in range(4)]
    may_go_on = [anyio.Event() for _ in range(4)]
    texts: list[bytes] = []
    num_asked = 0

    async def once(key: str, *args: Any) -> Any:
        nonlocal num_asked
        if args[0] == "XLEN" and key in (HISTORY, TOKENIZER):
            number, num_asked = num_asked, num_asked + 1
            asked[number].set()
            await may_go_on[number].wait()
        return await ask(key, *args)

    async def scrape_all() -> None:
        texts.append(await metrics.render())

    for stream in (HISTORY, TOKENIZER):
        await bus.route.call(stream, "XGROUP", "CREATE", stream, "g", "0", "MKSTREAM")
    monkeypatch.setattr(bus.route, "once", once)
    monkeypatch.setattr("wire.metrics._LOOK_S", 60.0)
    with metrics.follows(bus, HISTORY, "g"), metrics.follows(bus, TOKENIZER, "g"):
        async with anyio.create_task_group() as tasks:
            may_go_on[0].set()
            tasks.start_soon(scrape_all)
            await asked[1].wait()  # the first knows one stream
            tasks.start_soon(scrape_all)
            await asked[2].wait()  # the second none
            may_go_on[1].set()
            while not texts:
                await anyio.lowlevel.checkpoint()
            may_go_on[2].set()
            may_go_on[3].set()
    for text in texts:
        for stream in (HISTORY, TOKENIZER):
            assert f'headrace_stream_length{{stream="{stream}"}} 0.0'.encode() in text


async def test_a_bus_that_says_nothing_keeps_no_scraper_from_what_is_known_here(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: Any, **__: Any) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr("wire.metrics._LOOK_S", 0.01)
    with metrics.follows(bus, HISTORY, "g"):
        monkeypatch.setattr(bus.route, "once", silent)
        metrics.note_left("d", "m", metrics.FINISHED)
        with anyio.fail_after(60):
            text = await metrics.render()
    assert b"headrace_desk_jobs_total" in text
    assert b'stream="' not in text


@pytest.mark.parametrize(
    ("request_line", "status"), [("GET / HTTP/1.1", 404), ("POST /metrics HTTP/1.1", 405), ("x", 404), ("", 404)]
)
async def test_only_metrics_are_served_there(request_line: str, status: int) -> None:
    async with exposed() as client, await anyio.connect_tcp("127.0.0.1", client.base_url.port or 0) as line:
        await line.send(f"{request_line}\r\n\r\n".encode())
        assert f" {status} ".encode() in await line.receive()


async def test_a_bus_that_is_away_hides_streams_and_nothing_else(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise redis.ConnectionError("away")

    with metrics.follows(bus, HISTORY, "g"):
        monkeypatch.setattr(bus.route, "once", away)
        metrics.note_left("d", "m", metrics.FINISHED)
        text = await metrics.render()
    assert b"headrace_desk_jobs_total" in text
    assert b'stream="' not in text
