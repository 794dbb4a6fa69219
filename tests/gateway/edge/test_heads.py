"""What clients do below HTTP: slow, endless and broken heads, pipelining, old versions. Nobody holds a connection."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, SocketStream
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from gateway.edge.connection import Connection
from gateway.edge.room import Room
from tests.gateway.edge.asks import CHAT, still_serves
from tests.gateway.edge.sse import read
from tests.ring import MakeRing, Ring
from tests.script import Piece, say

pytestmark = pytest.mark.anyio

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
BODY = b'{"model":"tiny","messages":[{"role":"user","content":"x"}]%s}'


@asynccontextmanager
async def connected(ring: Ring) -> AsyncIterator[ByteStream]:
    async with await anyio.connect_tcp("127.0.0.1", int(ring.url.rsplit(":", 1)[1])) as stream:
        yield stream


async def rest(stream: ByteStream) -> bytes:
    """Return all that comes until the server closes."""
    got = b""
    with anyio.fail_after(60), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            got += await stream.receive()
    return got


async def talk(ring: Ring, data: bytes) -> bytes:
    async with connected(ring) as stream:
        with suppress(anyio.BrokenResourceError):
            await stream.send(data)
        return await rest(stream)


def post(fields: bytes = b"", *, version: bytes = b"1.1", headers: bytes = b"") -> bytes:
    body = BODY % fields
    head = b"POST %s HTTP/%s\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n"
    return head % (CHAT.encode(), version, len(body), headers) + body


def error_of(answer: bytes) -> str:
    message: str = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    return message


@pytest.mark.parametrize("before", [b"", LIVE + b"\r\n", b"\r\n"])
async def test_half_a_head_and_then_silence_is_answered_with_408(make_ring: MakeRing, before: bytes) -> None:
    async with make_ring(head_timeout_s=0.05) as ring:
        answer = await talk(ring, before + LIVE)
        assert b"HTTP/1.1 408 " in answer and answer.count(b"HTTP/1.1") == 1 + (before == LIVE + b"\r\n")
        assert "headers did not come" in error_of(answer[answer.index(b"HTTP/1.1 408") :])
        await still_serves(ring)


@pytest.mark.parametrize("data", [b"\r\n", b"\r\n\r\n"])
async def test_blank_lines_hold_no_connection(make_ring: MakeRing, data: bytes) -> None:
    async with make_ring(head_timeout_s=0.05) as ring:
        assert await talk(ring, data) == b""


async def test_a_connection_that_says_nothing_ends_like_an_idle_one(
    make_ring: MakeRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.edge.server._IDLE_S", 0.2)
    async with make_ring() as ring:
        assert await talk(ring, b"") == b""


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_slow_client_that_goes_on_is_waited_for(goes_on: bool) -> None:
    config = Config(PlainTextResponse("served"), log_config=None, lifespan="off")
    limits: dict[str, Any] = {"head_timeout_s": 0.0, "max_head_bytes": 65_536, "room": Room()}
    connection, wire = Connection(config, ServerState(), {}, **limits), Wire()
    connection.connection_made(wire)
    connection.data_received(LIVE)
    if goes_on:
        connection.data_received(b"X-Slow: " + b"a" * 10_000 + b"\r\n")  # worth 100 s
    await anyio.wait_all_tasks_blocked()
    assert wire.closing is not goes_on and wire.written.startswith(b"" if goes_on else b"HTTP/1.1 408 ")
    if goes_on:
        connection.data_received(b"\r\n")
        await anyio.wait_all_tasks_blocked()
        assert wire.written.endswith(b"served")
    connection.connection_lost(None)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await PlainTextResponse(scope["method"].encode() + b" " + body)(scope, receive, send)


OFFER = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n%s\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
PARTS = (
    LIVE + b"\r\n",
    b"\r\n" + LIVE + OFFER + b"\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n" + OFFER + b"\r\nabcde",
    CHUNKED % b"",
    CHUNKED % OFFER,
)


@given(
    st.lists(st.integers(0, len(PARTS) - 1), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 10_000), st.booleans()), max_size=12),
)
async def test_requests_mean_the_same_however_they_are_cut_into_pieces(
    order: list[int], cuts: list[tuple[int, bool]]
) -> None:
    raw = b"".join(PARTS[at] for at in order)
    pauses = {place % len(raw): pause for place, pause in cuts}
    config = Config(echo, log_config=None, lifespan="off")
    limits: dict[str, Any] = {"head_timeout_s": 60.0, "max_head_bytes": 65_536, "room": Room()}
    connection, wire = Connection(config, ServerState(), {}, **limits), Wire()
    connection.connection_made(wire)
    for begin, end in pairwise([0, *sorted(pauses), len(raw)]):
        connection.data_received(raw[begin:end])
        if pauses.get(end):
            await anyio.wait_all_tasks_blocked()
    await anyio.wait_all_tasks_blocked()
    answers = [part.partition(b"\r\n\r\n")[2] for part in wire.written.split(b"HTTP/1.1 200 OK")[1:]]
    assert answers == [b"GET " if at < 2 else b"POST abcde" for at in order]
    assert not wire.closing
    connection.connection_lost(None)


async def test_half_a_head_behind_a_long_answer_does_not_cut_it(make_ring: MakeRing) -> None:
    go = anyio.Event()
    async with make_ring(head_timeout_s=0.02, keep_alive_s=0.05) as ring, connected(ring) as stream:
        ring.replica.play(*say("one "), Piece(b"two ", after=go))
        await stream.send(post(b',"stream":true') + LIVE)
        got = b""
        while got.count(b"\n: ") < 3:  # comments fill a silence of seven times the head's time
            got += await stream.receive()
        go.set()
        got += await rest(stream)
    answer, _, late = got.partition(b"0\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1 and b"[DONE]" in answer
    assert late.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"a" * 5000),
        LIVE + b"X-Long: %s\r\n\r\n" % (b"a" * 5000),
        LIVE + b"%s: a\r\n\r\n" % (b"X" * 5000),
        LIVE + b"a:b\r\n" * 1000 + b"\r\n",
        LIVE + b"X-Endless: " + b"a" * 2_000_000,
    ],
)
async def test_a_head_beyond_its_size_is_431(make_ring: MakeRing, head: bytes) -> None:
    async with make_ring(max_head_bytes=4096) as ring:
        answer = await talk(ring, head)
        # a client that still sends may be cut before it reads
        assert answer.startswith(b"HTTP/1.1 431 ") or (not answer and len(head) > 1_000_000)
        await still_serves(ring)


BROKEN = [
    b"\x16\x03\x01\x02\x00\x01\x00",  # a TLS greeting
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nNo colon\r\n\r\n",
    post(headers=b"Content-Length: 3\r\n"),
    post(headers=b"Transfer-Encoding: chunked\r\n"),
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" % CHAT.encode(),
    b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n" % CHAT.encode(),
    b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" % CHAT.encode(),
    b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}}\r\n" % CHAT.encode(),
    b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n" % CHAT.encode(),
    b"CONNECT a:80 HTTP/1.1\r\n\r\n",
    b"GET \xff\xfe HTTP/1.1\r\n\r\n",
]


@pytest.mark.parametrize("data", BROKEN)
async def test_what_is_no_http_is_400_in_openais_shape_and_the_connection_ends(ring: Ring, data: bytes) -> None:
    answer = await talk(ring, data)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"connection: close" in answer.lower()
    assert answer.count(b"HTTP/1.1") == 1 and error_of(answer)
    assert ring.replica.requests == []
    await still_serves(ring)


@pytest.mark.parametrize("stream", [b"true", b"false"])
async def test_rubbish_behind_a_request_does_not_cut_into_its_answer(ring: Ring, stream: bytes) -> None:
    go = anyio.Event()
    ring.replica.play(*say("one "), Piece(b"two ", after=go))
    async with connected(ring) as connection:
        await connection.send(post(b',"stream":' + stream))
        await ring.replica.until(lambda: bool(ring.replica.requests))
        await connection.send(b"rubbish rubbish\r\n\r\n")
        await anyio.wait_all_tasks_blocked()
        go.set()
        answer = await rest(connection)
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"HTTP/1.1 ") == 1
    assert b"two" in answer and answer.endswith(b"0\r\n\r\n" if stream == b"true" else b"}")


async def test_pipelined_requests_are_answered_in_order(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    last = LIVE + b"Connection: close\r\n\r\n"
    answer = await talk(ring, (post() + LIVE + b"\r\n") * 20 + post(b',"stream":true') + last)
    kinds = [part.split(b"\r\n")[0] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert kinds == [b"200 OK"] * 42
    assert len(ring.replica.requests) == 21 and answer.count(b"data: [DONE]") == 1


async def test_a_client_that_asks_first_whether_it_may_send_hears_yes(ring: Ring) -> None:
    whole = post(headers=b"Expect: 100-continue\r\nConnection: close\r\n")
    head, _, body = whole.partition(b"\r\n\r\n")
    async with connected(ring) as stream:
        await stream.send(head + b"\r\n\r\n")
        assert await stream.receive() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await stream.send(body)
        assert (await rest(stream)).startswith(b"HTTP/1.1 200 ")


async def test_a_client_of_http_1_0_gets_plain_bytes_until_the_end(ring: Ring) -> None:
    ring.replica.play(*say("one ", "two "))
    streamed = await talk(ring, post(b',"stream":true', version=b"1.0"))
    head, _, body = streamed.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower() and b"connection: close" in head.lower()
    assert read(body.decode()).text() == "one two " and body.endswith(b"data: [DONE]\n\n")
    whole = await talk(ring, post(version=b"1.0"))
    assert json.loads(whole.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"] == "one two "


async def test_an_offer_to_speak_http_2_is_passed_over(ring: Ring) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    async with connected(ring) as stream:
        for asked, count in ((post(headers=offer), 1), (LIVE + offer + b"\r\n", 1), (post(headers=offer) + post(), 2)):
            await stream.send(asked)
            got = b""
            with anyio.fail_after(60):
                while got.count(b"HTTP/1.1 200 ") < count:
                    got += await stream.receive()
    assert len(ring.replica.requests) == 3
    assert (await talk(ring, LIVE + b"Connection: close, upgrade\r\nUpgrade: h2c\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_a_thousand_such_offers_in_one_go_are_passed_over(ring: Ring) -> None:
    offer = LIVE + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    answers = await talk(ring, offer * 1500 + LIVE + b"Connection: close\r\n\r\n")
    assert answers.count(b"HTTP/1.1 200 ") == 1501


async def test_beyond_the_limit_an_idle_connection_ends_for_a_new_one(make_ring: MakeRing) -> None:
    go = anyio.Event()
    async with make_ring(max_connections=4) as ring:
        ring.replica.play(*say("one "), Piece(b"two ", after=go))
        async with connected(ring) as busy:
            await busy.send(post(b',"stream":true', headers=b"Connection: close\r\n"))
            await ring.replica.until(lambda: bool(ring.replica.requests))
            for _ in range(20):
                async with connected(ring) as idle:
                    await idle.send(LIVE + b"\r\n")
                    assert (await idle.receive()).startswith(b"HTTP/1.1 200 ")
            go.set()
            assert (await rest(busy)).endswith(b"0\r\n\r\n")


async def test_a_connection_that_makes_room_is_closed(make_ring: MakeRing) -> None:
    async with make_ring(max_connections=2) as ring:
        await ring.http.aclose()
        async with connected(ring) as oldest, connected(ring) as busy:
            for stream in (oldest, busy):
                await stream.send(LIVE + b"\r\n")
                assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")
            async with connected(ring) as newest:
                await newest.send(LIVE + b"\r\n")
                assert (await newest.receive()).startswith(b"HTTP/1.1 200 ")
                assert await rest(oldest) == b""
                await busy.send(LIVE + b"\r\n")
                assert (await busy.receive()).startswith(b"HTTP/1.1 200 ")
                await busy.send(METRICS)
                shown = await rest(busy)
                assert b"\nheadrace_connections 2.0\n" in shown and b"\nheadrace_connections_limit 2.0\n" in shown
                assert b'headrace_connections_without_room_total{outcome="idle_ended"} 1.0' in shown


async def test_when_all_connections_are_busy_a_new_one_hears_so(make_ring: MakeRing) -> None:
    go = anyio.Event()
    async with make_ring(max_connections=4) as ring:
        ring.replica.play(*say("one "), Piece(b"two ", after=go))
        await ring.http.aclose()
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(talk, ring, post(b',"stream":true', headers=b"Connection: close\r\n"))
                await ring.replica.until(lambda number=number: len(ring.replica.requests) > number)  # type: ignore[misc]
            answer = await talk(ring, LIVE + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 503 ") and "no room" in error_of(answer)
            go.set()
        shown = await talk(ring, METRICS)
        assert b'headrace_connections_without_room_total{outcome="refused"} 1.0' in shown
        assert (await talk(ring, LIVE + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def half_closed(ring: Ring, data: bytes, *, later: bool = False) -> bytes:
    """Send and close our side, as `nc -N` does; return what comes. Unless `later`, the server reads both at once."""
    ours = socket.create_connection(("127.0.0.1", int(ring.url.rsplit(":", 1)[1])))
    ours.sendall(data)
    if later:
        await anyio.wait_all_tasks_blocked()
    ours.shutdown(socket.SHUT_WR)
    async with await SocketStream.from_socket(ours) as stream:
        return await rest(stream)


async def test_who_closes_its_side_behind_its_requests_gets_all_answers_that_take_no_work(ring: Ring) -> None:
    answer = await half_closed(ring, LIVE + b"\r\n" + LIVE + b"\r\n")
    assert answer.count(b"HTTP/1.1 200") == 2 and b"connection: close" not in answer.partition(b"\r\n\r\n")[0]
    assert (await half_closed(ring, post(b',"n":0'))).startswith(b"HTTP/1.1 400"), "a body and its end in one go"
    assert await half_closed(ring, LIVE) == b""
    assert await half_closed(ring, post()[:-1]) == b"", "it cannot be answered any more"
    await still_serves(ring)


@pytest.mark.parametrize("later", [True, False])
@pytest.mark.parametrize("fields", [b"", b',"stream":true'])
async def test_who_closes_its_side_while_an_answer_is_computed_has_left(ring: Ring, fields: bytes, later: bool) -> None:
    ring.replica.play(*say("one "), finish=None)
    assert b"[DONE]" not in await half_closed(ring, post(fields), later=later)
    await ring.until_idle()
    ring.replica.play(*say("one "))
    await still_serves(ring)
