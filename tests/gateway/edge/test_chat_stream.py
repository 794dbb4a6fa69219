"""The shape of streamed and whole chat completions, over real HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.edge.sse import Stream, read
from tests.ring import Ring
from tests.scripted_replica import Script, say, tag, think

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


async def streamed(ring: Ring, **fields: Any) -> Stream:
    response = await ring.http.post("/v1/chat/completions", json={**ASK, "stream": True, **fields})
    assert response.status_code == 200, response.text
    return read(response.text)


async def whole(ring: Ring, **fields: Any) -> dict[str, Any]:
    response = await ring.http.post("/v1/chat/completions", json={**ASK, **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def test_a_stream_has_a_role_chunk_deltas_a_finish_reason_and_one_done(ring: Ring) -> None:
    ring.replica.play(*say("hello", " world"))
    stream = await streamed(ring)
    assert stream.chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert stream.text() == "hello world"
    assert stream.finish_reason() == "stop"
    assert [event.data for event in stream.events].count("[DONE]") == 1
    assert stream.events[-1].data == "[DONE]"
    for name in ("id", "created", "model", "object"):
        assert len({str(chunk[name]) for chunk in stream.chunks}) == 1
    assert all("usage" not in chunk for chunk in stream.chunks)


async def test_a_whole_answer_has_the_text_of_the_stream(ring: Ring) -> None:
    ring.replica.play(*say("hello", " world"))
    answer = await whole(ring)
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == "hello world"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 3
