"""Framing, keep-alive, headers, connection reuse: what readers and proxies of event streams trip over."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import httpx
import pytest

from tests.gateway.edge.asks import ASK, CHAT, half_told, lines_until, opened
from tests.gateway.edge.sse import read
from tests.ring import MakeRing, Ring
from tests.script import Piece, say

pytestmark = pytest.mark.anyio


async def test_events_use_lf_one_data_line_and_no_id(ring: Ring) -> None:
    response = await ring.http.post(CHAT, json={**ASK, "stream": True})
    assert "\r" not in response.text
    assert all(event.fields == ["data"] for event in read(response.text).events)


async def test_unicode_line_separators_never_stand_raw_in_an_event(ring: Ring) -> None:
    ring.replica.play(*say("\u2028", *[bytes([byte]) for byte in "\u2029\u0085".encode()]))
    response = await ring.http.post(CHAT, json={**ASK, "stream": True})
    assert not any(char in response.text for char in "\u2028\u2029\u0085")
    assert read(response.text).text() == "\u2028\u2029\u0085"


async def test_headers_tell_proxies_not_to_hold_the_stream_back(ring: Ring) -> None:
    response = await ring.http.post(CHAT, json={**ASK, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-length" not in response.headers


async def test_chunks_arrive_as_they_are_made(ring: Ring) -> None:
    async with half_told(ring) as (lines, go):
        go.set()
        assert "two " in "".join([line async for line in lines])


async def test_silence_is_filled_with_comments_that_are_no_events(make_ring: MakeRing) -> None:
    async with make_ring(keep_alive_s=0.05) as ring:
        first, second = anyio.Event(), anyio.Event()
        ring.replica.play(Piece(b"one ", after=first), Piece(b"two ", after=second))
        async with opened(ring) as response:
            got, comments = "", 0
            async for part in response.aiter_text():
                got += part
                comments = got.count(": keep-alive\n\n")
                if comments >= 2:
                    first.set()
                if comments >= 4 and "one " in got:
                    second.set()
        stream = read(got)
        assert stream.text() == "one two "
        assert set(stream.comments) == {"keep-alive"}
        assert stream.events[-1].data == "[DONE]"


async def test_keep_alive_is_not_the_first_token(make_ring: MakeRing) -> None:
    async with make_ring(keep_alive_s=0.05) as ring:
        go = anyio.Event()
        ring.replica.play(Piece(b"one ", after=go))
        async with opened(ring, stream_options={"include_usage": True}) as response:
            got = ""
            async for part in response.aiter_text():
                got += part
                if got.count(": keep-alive") >= 3:  # a timer may be a millisecond early
                    go.set()
        assert read(got).chunks[-1]["usage"]["headrace"]["ttft_ms"] > 100


async def test_an_error_after_keep_alive_but_before_a_token_is_an_error_event(
    make_ring: MakeRing, pass_deadlines: Callable[[], None]
) -> None:
    async with make_ring(keep_alive_s=0.05) as ring:
        ring.replica.play(finish=None)
        got = []
        async with opened(ring) as response:
            async for line in response.aiter_lines():
                got.append(line)
                if ": keep-alive" in line:
                    pass_deadlines()
        stream = read("\n".join(got) + "\n")
        assert stream.chunks[-1]["error"]["code"] == "deadline_exceeded"
        assert stream.events[-1].data == "[DONE]"


async def test_openais_client_reads_a_stream_with_comments(make_ring: MakeRing) -> None:
    async with make_ring(keep_alive_s=0.03) as ring:
        go = anyio.Event()
        ring.replica.play(*say("one "), Piece(b"two ", after=go))
        async with ring.openai() as client:
            stream = await client.chat.completions.create(**ASK, stream=True)
            text = ""
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_set_after_comments, ring, go)
                async for chunk in stream:
                    text += chunk.choices[0].delta.content or ""
        assert text == "one two "


async def _set_after_comments(ring: Ring, go: anyio.Event) -> None:
    async with opened(ring) as other:
        await lines_until(other, ": keep-alive")
        go.set()


async def test_connections_are_used_again_after_done(ring: Ring) -> None:
    limits = httpx.Limits(max_connections=2, max_keepalive_connections=2)
    async with httpx.AsyncClient(base_url=ring.url, limits=limits, timeout=60.0, trust_env=False) as http:
        ports = set()
        for _ in range(20):
            seen = ""
            async with http.stream("POST", CHAT, json={**ASK, "stream": True}) as response:
                ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))
                async for line in response.aiter_lines():
                    seen = line or seen
            assert seen == "data: [DONE]"
        assert len(ports) == 1


async def test_the_end_of_the_body_comes_in_one_piece_with_done(ring: Ring) -> None:
    port = int(ring.url.rsplit(":", 1)[1])
    body = httpx.Request("POST", ring.url + CHAT, json={**ASK, "stream": True}).read()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        for _ in range(5):
            await stream.send(head.encode() + body)
            got = b""
            while b"[DONE]" not in got:
                got += await stream.receive()
            assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
