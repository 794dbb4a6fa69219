"""A client ends the thinking of a request that runs: by the id of its answer or its own, here or from another edge."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest

from gateway.edge.control import Controls
from tests.gateway.edge.asks import ASK, CHAT, RESPONSES
from tests.gateway.edge.sse import read
from tests.ring import Ring
from tests.script import Piece, think
from wire.bus import Bus
from wire.errors import NotFoundError
from wire.messages import Closed, EndReasoning, Job, Request, SamplingParams

pytestmark = pytest.mark.anyio

END = {"action": "end_reasoning"}


def ends(ring: Ring) -> list[str]:
    return [message.request_id for message in ring.replica.control if isinstance(message, EndReasoning)]


async def control(ring: Ring, name: str, body: Any = END) -> int:
    return (await ring.http.post(f"/v1/requests/{name}/control", json=body)).status_code


async def test_the_replica_is_told_by_the_id_of_the_answer_and_by_the_clients_own(ring: Ring) -> None:
    more = anyio.Event()
    ring.replica.play(*think("one "), Piece(b"hello", after=more))
    headers = {"x-request-id": "mine"}
    async with ring.http.stream("POST", CHAT, json={**ASK, "stream": True}, headers=headers) as response:
        text = ""
        async for piece in response.aiter_text():
            text += piece
            if "reasoning_content" in text and not more.is_set():
                chat_id = read(text + "\n\n").chunks[0]["id"]
                assert await control(ring, chat_id) == 202
                await ring.replica.until(lambda: len(ends(ring)) == 1)
                assert await control(ring, "mine") == 202
                await ring.replica.until(lambda: len(ends(ring)) == 2)
                more.set()
    assert set(ends(ring)) == {ring.replica.requests[0].job.request_id}
    assert await control(ring, "mine") == 404  # over


async def test_a_whole_answer_is_steered_by_the_clients_id(ring: Ring) -> None:
    more = anyio.Event()
    ring.replica.play(*think("one "), Piece(b"hello", after=more))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: ring.http.post(CHAT, json=ASK, headers={"x-request-id": "whole"}))
        await ring.replica.until(lambda: bool(ring.replica.requests))
        assert await control(ring, "whole") == 202
        await ring.replica.until(lambda: len(ends(ring)) == 1)
        more.set()


async def test_a_response_is_found_by_its_record_from_any_edge(ring: Ring) -> None:
    more = anyio.Event()
    ring.replica.play(*think("one "), Piece(b"hello", after=more))
    body = {"model": "tiny", "input": "hi", "stream": True}
    async with ring.http.stream("POST", RESPONSES, json=body) as response:
        text = ""
        async for piece in response.aiter_text():
            text += piece
            if "reasoning_text.delta" in text and not more.is_set():
                name = read(text + "\n\n").chunks[0]["response"]["id"]
                other_edge = Controls(ring.bus, 1)
                with pytest.raises(NotFoundError):
                    await other_edge.end_reasoning(name, "somebody else")
                await other_edge.end_reasoning(name, "")
                await ring.replica.until(lambda: len(ends(ring)) == 1)
                more.set()


async def test_a_request_without_a_replica_is_told_by_its_record(bus: Bus) -> None:
    job = Job(request_id="resp_early", partition=0, model="m", edge="hr:edge:e", deadline=time.time() + 60)
    request = Request(model="m", sampling=SamplingParams(n=2))
    await bus.admit(job, {"request": request}, to="hr:{0}:nowhere", ttl_s=60)
    await Controls(bus, 1).end_reasoning("resp_early", "")
    assert await bus.record(0, "resp_early", "closed") == {"closed": Closed(at={0: (0,), 1: (0,)})}


@pytest.mark.parametrize(("name", "body", "status"), [
    ("chatcmpl-unknown", END, 404),
    ("resp_unknown", END, 404),
    ("x", {"action": "explode"}, 400),
    ("x", {}, 400),
])  # fmt: skip
async def test_what_cannot_be_done_is_refused(ring: Ring, name: str, body: Any, status: int) -> None:
    assert await control(ring, name, body) == status
