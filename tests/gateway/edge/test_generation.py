"""A generation by itself: what comes at once stays apart for a client that keeps up, and is joined for a slow one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
import pytest

from gateway.edge.generation import Generation
from gateway.edge.inflight import InFlight
from gateway.edge.reply import ChoiceUpdate, Reply
from gateway.postprocess.pipeline import Pipeline
from wire.bus import Bus
from wire.messages import Job, Request, SamplingParams, TokenBatch, TokenChunk

pytestmark = pytest.mark.anyio


class Letters:
    """A vocabulary whose token n is the letter n."""

    strips_first_space = False

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


@pytest.fixture
def inflight() -> InFlight:
    return InFlight(max_pending_tokens=1_000)


@pytest.fixture
async def generation(inflight: InFlight) -> AsyncIterator[Generation]:
    job = Job(request_id="r", partition=0, model="m", edge="e", deadline=time.time() + 60)
    request = Request(model="m", messages=(), sampling=SamplingParams())
    nothing: Any = None
    with inflight.open("r", deadline=job.deadline) as flight:
        yield Generation(
            job, request, flight, cast(Reply, nothing), [Pipeline(Letters(), stop=("z",))],
            bus=cast(Bus, nothing), stop_choice=lambda *_: None,
        )  # fmt: skip


def batch(text: str, *, at: int = 0, finish: bool = False) -> TokenBatch:
    chunks = [TokenChunk(request_id="r", attempt=0, index=at + n, token_ids=(ord(one),)) for n, one in enumerate(text)]
    if finish:
        chunks.append(TokenChunk(request_id="r", attempt=0, index=at + len(text), finish_reason="length"))
    return TokenBatch(replica_id="m-a", step=1, chunks=tuple(chunks))


def texts(updates: list[ChoiceUpdate]) -> list[str]:
    return ["".join(delta.text for delta in update.deltas) for update in updates]


async def test_what_comes_while_we_wait_stays_apart(inflight: InFlight, generation: Generation) -> None:
    found: list[str] = []

    async def answer() -> None:
        async for updates in generation.updates():
            found.extend(texts(updates))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        await anyio.wait_all_tasks_blocked()
        inflight.deliver(batch("abc"))
        await anyio.wait_all_tasks_blocked()
        assert found == ["a", "b", "c"]
        inflight.deliver(batch("de", at=3, finish=True))
    assert found == ["a", "b", "c", "d", "e", ""]
    assert generation.finish_reasons == ("length",)


async def test_what_came_while_the_client_was_written_to_is_joined(inflight: InFlight, generation: Generation) -> None:
    updates = generation.updates()
    inflight.deliver(batch("abc"))
    assert texts(await anext(updates)) == ["abc"]
    inflight.deliver(batch("de", at=3))  # the answer has not come back for more: it is being written
    inflight.deliver(batch("f", at=5, finish=True))
    assert texts(await anext(updates)) == ["def"]
    with pytest.raises(StopAsyncIteration):
        await anext(updates)
    assert generation.num_tokens == 6


async def test_what_is_here_is_taken_by_a_call_each_chunk_apart(inflight: InFlight, generation: Generation) -> None:
    assert generation.take_at_once() is None
    inflight.deliver(batch("abc"))
    assert texts(generation.take_at_once() or []) == ["a", "b", "c"]
    inflight.deliver(batch("d", at=3, finish=True))
    assert generation.take_at_once() is None  # an end is for the task, and so is what comes with it
    assert texts(await generation.take_updates()) == ["d"]


async def test_an_answer_that_a_call_ended_wakes_its_task(inflight: InFlight, generation: Generation) -> None:
    taken: list[str] = []

    def take() -> bool:
        updates = generation.take_at_once()
        taken.extend(texts(updates or []))
        return updates is not None

    generation.bell.at_once = take
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anext, generation.updates(), None)
            await anyio.wait_all_tasks_blocked()
            inflight.deliver(batch("az"))
    assert taken == ["a", ""]
    assert generation.finish_reasons == ("stop",)
