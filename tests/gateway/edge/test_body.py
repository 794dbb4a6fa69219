"""Hostile and odd request bodies: 400 or 413 in OpenAI's shape, never 5xx, and the next request works."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc
import psutil
import pytest

from tests.gateway.edge.asks import ASK, CHAT, RESPONSES, opened, refused, still_serves, whole
from tests.gateway.edge.openapi.test_document import DOCUMENT
from tests.gateway.edge.sse import read
from tests.ring import MakeRing, Ring
from tests.script import Piece, Script
from wire.messages import Request

pytestmark = pytest.mark.anyio

HEAD = '{"model":"tiny","messages":[{"role":"user","content":"x"}],"input":"x"'


NO_REQUESTS = [
    b"",
    b"   ",
    b'{"a":',
    b"\xff\xfe{",
    b"[]",
    b'"x"',
    b"null",
    b"{}",
    HEAD.encode() + b',"u":NaN}',
    HEAD.encode() + b'} {"again":1}',
    HEAD.encode() + b',"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"model":"tiny","input":"x\xff","messages":[{"role":"user","content":"x\xff"}]}',
]
SURROGATES = [
    '{"model":"tiny","messages":[{"role":"user","content":"cut \\ud83c"}]}',
    '{"model":"tiny","messages":[{"role":"user","content":"\\udf55 z"}]}',
    HEAD + ',"tools":[{"type":"function","function":{"name":"\\ud83c"}}]}',
    HEAD + ',"stop":"\\ud83c"}',
    '{"model":"\\ud83c","messages":[{"role":"user","content":"x"}]}',
    HEAD + ',"ignored":"\\ud83c"}',
]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_body_that_is_no_request_is_400_in_openais_shape(ring: Ring, path: str) -> None:
    for body in NO_REQUESTS:
        response = await ring.http.post(path, content=body)
        assert response.status_code == 400, body[:100]
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    await still_serves(ring)


async def test_an_unpaired_surrogate_is_refused_wherever_it_stands(ring: Ring) -> None:
    for body in SURROGATES:
        response = await ring.http.post(CHAT, content=body)
        assert response.status_code == 400, body
        assert response.json()["error"]["type"] == "invalid_request_error"


async def test_an_unpaired_surrogate_is_refused_on_every_route(ring: Ring) -> None:
    for path, methods in DOCUMENT["paths"].items():
        if "requestBody" not in methods.get("post", {}):
            continue
        for half in ("\\ud83c", "\\udf55 z"):
            body = HEAD[:-1] + f'","prompt":"x","tokens":[1],"metadata":{{"a":"{half}"}}}}'
            response = await ring.http.post(path.replace("{id}", "conv_1"), content=body)
            assert response.status_code == 400, path
            assert "surrogate" in response.text
    await still_serves(ring)


async def test_a_proper_surrogate_pair_is_one_character(ring: Ring) -> None:
    body = '{"model":"tiny","messages":[{"role":"user","content":"\\ud83c\\udf55"}]}'
    assert (await ring.http.post(CHAT, content=body)).status_code == 200
    assert ring.replica.requests[-1].request.messages[0].content == "🍕"


async def test_a_byte_order_mark_before_valid_json_is_skipped(ring: Ring) -> None:
    assert (await ring.http.post(CHAT, content=b"\xef\xbb\xbf" + HEAD.encode() + b"}")).status_code == 200


async def _pieces(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * 65_536


async def test_a_chunked_body_beyond_the_limit_is_413_at_once_and_memory_stays_flat(make_ring: MakeRing) -> None:
    async with make_ring(max_body_bytes=200_000) as ring:
        await ring.http.post(CHAT, content=_pieces(8))  # what is made once is made
        before = psutil.Process().memory_info().rss
        response = await ring.http.post(CHAT, content=_pieces(160))
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"
        assert psutil.Process().memory_info().rss - before < 8 * 1024 * 1024
        await still_serves(ring)


async def test_a_body_without_end_is_answered_as_it_passes_the_limit_and_then_cut(make_ring: MakeRing) -> None:
    async with make_ring(max_body_bytes=1000) as ring:
        port = int(ring.url.rsplit(":", 1)[1])
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            await stream.send(b"800\r\n" + b"x" * 2048 + b"\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 413 ")
            with anyio.fail_after(60), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                while True:
                    await stream.send(b"800\r\n" + b"x" * 2048 + b"\r\n")
                    with anyio.move_on_after(0.01):
                        await stream.receive()


async def test_a_content_length_beyond_the_limit_is_413_before_the_body_is_sent(make_ring: MakeRing) -> None:
    async with make_ring(max_body_bytes=1000) as ring:
        port = int(ring.url.rsplit(":", 1)[1])
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n".encode())
            assert (await stream.receive()).startswith(b"HTTP/1.1 413 ")


async def test_half_a_body_and_then_silence_is_answered(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.edge.schema.body._SILENCE_S", 0.05)
    port = int(ring.url.rsplit(":", 1)[1])
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{{".encode())
        with anyio.fail_after(60):
            answer = await stream.receive()
    assert answer.startswith(b"HTTP/1.1 400 ") and b"No more of the request body came" in answer
    monkeypatch.undo()
    await still_serves(ring)


async def test_a_body_that_crawls_is_answered(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.edge.schema.body._SILENCE_S", 0.2)
    monkeypatch.setattr("gateway.edge.schema.body._LEAST_BYTES_PER_S", 1e6)
    port = int(ring.url.rsplit(":", 1)[1])

    async def crawl(stream: anyio.abc.ByteStream) -> None:
        with suppress(anyio.BrokenResourceError):
            while True:  # never silent for long
                await stream.send(b" ")
                await anyio.sleep(0.01)

    async with await anyio.connect_tcp("127.0.0.1", port) as stream, anyio.create_task_group() as tasks:
        await stream.send(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n".encode())
        tasks.start_soon(crawl, stream)
        with anyio.fail_after(60):
            answer = await stream.receive()
        tasks.cancel_scope.cancel()
    assert answer.startswith(b"HTTP/1.1 400 ") and b"No more of the request body came at 1e+06 bytes" in answer


async def test_a_body_longer_than_its_content_length_harms_nobody(ring: Ring) -> None:
    port = int(ring.url.rsplit(":", 1)[1])
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}xxxxx".encode())
        assert b" 400 " in (await stream.receive()).split(b"\r\n")[0]
    await still_serves(ring)


async def test_a_prompt_over_the_context_is_refused_before_it_reaches_a_replica(ring: Ring) -> None:
    body = {**ASK, "messages": [{"role": "user", "content": "word " * 100_000}]}
    response = await ring.http.post(CHAT, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert ring.replica.requests == []


async def test_two_requests_with_the_same_client_id_keep_their_own_text(ring: Ring) -> None:
    go = anyio.Event()

    def script(request: Request) -> Script:
        return Script([Piece(b"one " if request.messages[0].content == "1" else b"two "), Piece(b"!", after=go)])

    ring.replica.script = script
    texts: dict[str, str] = {}

    async def ask(content: str) -> None:
        body = {**ASK, "stream": True, "messages": [{"role": "user", "content": content}]}
        response = await ring.http.post(CHAT, json=body, headers={"X-Request-Id": "same"})
        assert response.headers["x-request-id"] == "same"
        assert "same" not in response.text
        texts[content] = read(response.text).text()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, "1")
        tasks.start_soon(ask, "2")
        async with opened(ring, messages=[{"role": "user", "content": "3"}]) as third:
            await anext(third.aiter_bytes())
        await ring.replica.cancelled()
        await ring.replica.until(lambda: len(ring.replica.requests) == 3)
        go.set()
    assert texts == {"1": "one !", "2": "two !"}
    ids = {running.job.request_id for running in ring.replica.requests}
    assert len(ids) == 3 and "same" not in ids


async def test_a_long_client_id_is_cut_and_one_is_made_when_there_is_none(ring: Ring) -> None:
    long = await ring.http.get("/health/live", headers={"X-Request-Id": "a" * 5000})
    assert long.headers["x-request-id"] == "a" * 128
    assert len((await ring.http.get("/health/live")).headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    "header",
    [b"X-Request-Id: " + b"a" * 1_000_000, b"X-Request-Id: a\r\n b", b"X-Request-Id: a\nb", b"X-Request-Id: \xff\x01"],
)
async def test_a_client_id_made_to_hurt_is_cut_or_refused(ring: Ring, header: bytes) -> None:
    port = int(ring.url.rsplit(":", 1)[1])
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        got = b""
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            await stream.send(
                b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + header + b"\r\n\r\n"
            )
            while True:
                got += await stream.receive()
    head = got.partition(b"\r\n\r\n")[0]
    assert not got or head.split(b" ")[1] in (b"200", b"400", b"431")
    assert len(head) < 2000 and b"\n b" not in head.replace(b"\r\n", b"")
    await still_serves(ring)


async def test_an_unknown_path_and_a_wrong_method_have_openais_error_shape(ring: Ring) -> None:
    for response in (await ring.http.post("/v1/nope"), await ring.http.get(CHAT), await ring.http.get("/nope.html")):
        assert response.status_code in (404, 405)
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_whole_number_may_be_written_with_a_point(ring: Ring) -> None:
    schema = {"type": "integer", "minimum": 2.0}
    fields = {"max_tokens": 7.0, "seed": 1e3, "temperature": 1, "logit_bias": {"5": 2.0}}
    await whole(ring, **fields, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
    sampling = ring.replica.requests[-1].request.sampling
    assert (sampling.max_tokens, sampling.seed, sampling.temperature) == (7, 1000, 1.0)
    assert sampling.logit_bias == {5: 2.0}
    for name, value in (("max_tokens", 7.5), ("seed", 1e300), ("n", "2")):
        wrong: dict[str, Any] = {"max_tokens": 7.0, name: value}
        await refused(ring, name, **wrong)
    deep = f'{{"model": "tiny", "max_tokens": 7.0, "x": {"[" * 900}{"]" * 900}}}'
    assert (await ring.http.post(CHAT, content=deep)).status_code == 400
