"""A client that leaves ends its work at once; one that reads slowly or not at all harms only itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest

from tests.gateway.edge.asks import ASK, CHAT, lines_until, opened, still_serves, streamed, whole
from tests.gateway.edge.sse import read
from tests.ring import MakeRing, Ring
from tests.script import Script, say
from tests.tiny_model import write_tiny_model
from wire import topics
from wire.bus.records import TURN_FOLLOWS
from wire.messages import Request

pytestmark = pytest.mark.anyio

LONG = b"x" * 1000


async def test_leaving_in_mid_stream_cancels_once_at_the_replica(ring: Ring) -> None:
    ring.replica.play(*say("one "), finish=None)
    async with opened(ring) as response:
        await lines_until(response, "one ")
    (cancel,) = await ring.replica.cancelled()
    assert cancel.request_id == ring.replica.requests[0].job.request_id
    assert cancel.reason == "client_gone"
    await ring.until_idle()
    assert len(ring.replica.cancels) == 1


async def test_a_cancel_tells_whether_a_turn_follows(ring: Ring) -> None:
    """So that who goes on from a stopped answer waits for its turn, and nobody for one that never comes."""
    ring.replica.play(*say("one "), finish=None)
    for store in (True, False):
        body = {"model": "tiny", "input": "hi", "stream": True, "store": store}
        async with ring.http.stream("POST", "/v1/responses", json=body) as response:
            async for line in response.aiter_lines():
                if "one " in line:
                    break
        await ring.until_idle()
    marks = []
    for running in ring.replica.requests:
        key = topics.job_record(running.job.partition, running.job.request_id)
        marks.append(await ring.bus.route.call(key, "HGET", key, "cancelled"))
    assert marks == [TURN_FOLLOWS, b"1"]
    ring.replica.play(*say("two "))
    stopped = ring.replica.requests[0].job.request_id
    answer = await ring.http.post(
        "/v1/responses", json={"model": "tiny", "input": "go on", "previous_response_id": stopped}
    )
    assert answer.status_code == 200


async def test_leaving_again_and_again_leaves_nothing_behind(ring: Ring) -> None:
    ring.replica.play(*say("one "), finish=None)
    for _ in range(20):
        async with opened(ring) as response:
            await lines_until(response, "one ")
    await ring.replica.cancelled(20)
    await ring.until_idle()
    ring.replica.play(*say("one "))
    await still_serves(ring)


async def _leave(ring: Ring, *, stream: bool, placed: bool) -> None:
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            async with httpx.AsyncClient(base_url=ring.url, timeout=60.0, trust_env=False) as http:
                await http.post(CHAT, json={**ASK, "stream": stream})

        tasks.start_soon(ask)
        with anyio.fail_after(60):
            while not await ring.metric("headrace_inflight_requests"):
                await anyio.sleep(0.01)
        if placed:
            await ring.replica.until(lambda: bool(ring.replica.running))
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_before_the_first_token_cancels(ring: Ring, stream: bool) -> None:
    ring.replica.play(finish=None)
    await _leave(ring, stream=stream, placed=True)
    await ring.replica.cancelled()
    await ring.until_idle()


async def test_leaving_before_placement_means_that_no_replica_ever_sees_the_job(ring: Ring) -> None:
    await ring.replica_loads()
    await _leave(ring, stream=True, placed=False)
    with anyio.fail_after(60):
        while await ring.metric("headrace_cancels_total") == 0:
            await anyio.sleep(0.01)
    await ring.until_idle()  # the cancel is on the bus
    ring.replica.state = "ready"
    ring.replica.play(*say("one "))
    await whole(ring)
    assert len(ring.replica.requests) == 1


async def test_a_cancel_that_comes_too_late_is_harmless(ring: Ring) -> None:
    async with opened(ring) as response:
        await lines_until(response, "[DONE]")
    await still_serves(ring)


async def test_usage_is_counted_for_streams_that_were_broken_off(ring: Ring) -> None:
    ring.replica.play(*say("one ", "two "), finish=None)
    async with opened(ring) as response:
        await lines_until(response, "two ")
    await ring.replica.cancelled()
    await ring.until_idle()
    text = (await ring.http.get("/metrics")).text
    assert 'headrace_tokens_total{kind="answer",model="tiny"} 2.0' in text
    assert 'headrace_requests_total{end="client_gone",model="tiny"} 1.0' in text


@contextmanager
def lazy_client(ring: Ring) -> Iterator[socket.socket]:
    """A client that asks for a stream and reads only when told, through a tiny receive buffer."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect(("127.0.0.1", int(ring.url.rsplit(":", 1)[1])))
        body = httpx.Request("POST", ring.url + CHAT, json={**ASK, "stream": True, "user": "lazy", "stop": "~"}).read()
        head = f"POST {CHAT} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        yield client


def read_all(client: socket.socket) -> str:
    parts = []
    while part := client.recv(1 << 20):
        parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head:
        return body.decode()
    return b"".join(body.split(b"\r\n")[1::2]).decode()  # JSON and SSE of ours hold no CR


@pytest.fixture
def wide_model(tmp_path: Path) -> Path:
    """A model whose tokens are a kilobyte long, so that buffers fill quickly."""
    return write_tiny_model(tmp_path / "tiny", pieces=[LONG, b"one "], max_model_len=100_000)


def lazy_gets(count: int) -> object:
    def script(request: Request) -> Script:
        return Script(say(*[LONG] * count) if request.sampling.stop else say("one "), per_chunk=10)

    return script


async def test_text_for_a_slow_client_is_joined_and_complete(make_ring: MakeRing, wide_model: Path) -> None:
    async with make_ring(model_path=wide_model, send_timeout_s=600) as ring:
        ring.replica.script = lazy_gets(8000)  # type: ignore[assignment]
        with lazy_client(ring) as client:
            await ring.replica.until(lambda: bool(ring.replica.requests) and not ring.replica.running)
            with anyio.fail_after(60):
                while not await ring.metric("headrace_pending_tokens"):  # the edge reads what the replica has said
                    await anyio.sleep(0.01)
            assert (await streamed(ring)).text() == "one "
            stream = read(await anyio.to_thread.run_sync(read_all, client))
        assert stream.text() == "x" * 8_000_000
        assert stream.finish_reason() == "stop"
        assert len(stream.events) < 700, "what waited was joined"


async def test_a_client_too_far_behind_loses_only_itself_and_no_text_in_the_middle(
    make_ring: MakeRing, wide_model: Path
) -> None:
    async with make_ring(model_path=wide_model, max_pending_tokens=500, send_timeout_s=600) as ring:
        ring.replica.script = lazy_gets(20_000)  # type: ignore[assignment]
        with lazy_client(ring) as client:
            await ring.replica.until(lambda: bool(ring.replica.requests))
            assert (await streamed(ring)).text() == "one "
            with anyio.fail_after(60):
                while await ring.metric("headrace_pending_tokens") <= 500:
                    await anyio.sleep(0.01)
            await ring.replica.until(lambda: not ring.replica.running)
            assert await ring.metric("headrace_pending_tokens") <= 510
            stream = read(await anyio.to_thread.run_sync(read_all, client))
        assert set(stream.text()) == {"x"}
        assert stream.chunks[-1]["error"]["code"] == "overloaded"
        assert stream.events[-1].data == "[DONE]"


async def test_a_client_that_takes_nothing_is_cut_off_and_its_work_cancelled(
    make_ring: MakeRing, wide_model: Path
) -> None:
    async with make_ring(model_path=wide_model, send_timeout_s=0.3) as ring:
        ring.replica.play(*say(*[LONG] * 15_000), finish=None, per_chunk=10)
        with lazy_client(ring):
            with anyio.fail_after(60):
                await ring.replica.cancelled()
            await ring.until_idle()
            assert len(ring.replica.cancels) == 1
