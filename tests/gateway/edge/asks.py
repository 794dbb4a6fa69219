"""Short ways to ask the ring, for the edge's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx

from tests.gateway.edge.sse import Stream, read
from tests.ring import Ring
from tests.script import Piece, say

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"


async def streamed(ring: Ring, **fields: Any) -> Stream:
    """Ask for a streamed chat completion and read it to its end."""
    response = await ring.http.post(CHAT, json={**ASK, "stream": True, **fields})
    assert response.status_code == 200, response.text
    return read(response.text)


async def whole(ring: Ring, **fields: Any) -> dict[str, Any]:
    """Ask for a whole chat completion."""
    response = await ring.http.post(CHAT, json={**ASK, **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def both(ring: Ring, **fields: Any) -> tuple[str, str, str | None]:
    """Ask in both modes, check that they agree, and return content, reasoning and finish reason."""
    stream, answer = await streamed(ring, **fields), await whole(ring, **fields)
    choice = answer["choices"][0]
    content, reasoning = choice["message"]["content"], choice["message"].get("reasoning_content", "")
    assert (stream.text(), stream.text(name="reasoning_content")) == (content, reasoning)
    assert stream.finish_reason() == choice["finish_reason"]
    return content, reasoning, choice["finish_reason"]


async def refused(ring: Ring, param: str | None, path: str = CHAT, status: int = 400, **fields: Any) -> dict[str, Any]:
    """Ask for something wrong in both modes; return OpenAI's error object."""
    base = ASK if path == CHAT else {"model": "tiny", "input": "hi"}
    for stream in (True, False):
        response = await ring.http.post(path, json={**base, "stream": stream, **fields})
        assert response.status_code == status, response.text
        error: dict[str, Any] = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == param, error
    return error


async def still_serves(ring: Ring) -> None:
    """Check that a plain request works and nothing is left in flight."""
    await ring.until_idle()
    assert (await whole(ring))["choices"][0]["finish_reason"] == "stop"
    await ring.until_idle()


@asynccontextmanager
async def opened(ring: Ring, path: str = CHAT, **fields: Any) -> AsyncIterator[httpx.Response]:
    """Open a stream; leaving the block closes the connection."""
    base = ASK if path == CHAT else {"model": "tiny", "input": "hi"}
    async with (
        httpx.AsyncClient(base_url=ring.url, timeout=60.0, trust_env=False, verify=False) as http,
        http.stream("POST", path, json={**base, "stream": True, **fields}) as response,
    ):
        yield response


@asynccontextmanager
async def half_told(ring: Ring) -> AsyncIterator[tuple[AsyncIterator[str], anyio.Event]]:
    """Open a stream that has said "one "; yields its further lines, and what to set so that it says "two " and ends."""
    go = anyio.Event()
    ring.replica.play(*say("one "), Piece(b"two ", after=go))
    async with opened(ring) as response:
        lines = response.aiter_lines()
        async for line in lines:
            if "one " in line:
                break
        yield lines, go


async def lines_until(response: httpx.Response, text: str) -> list[str]:
    """Read lines of a stream up to one that contains the text."""
    found: list[str] = []
    async for line in response.aiter_lines():
        found.append(line)
        if text in line:
            return found
    raise AssertionError(f"{text!r} never came; got {found}")
