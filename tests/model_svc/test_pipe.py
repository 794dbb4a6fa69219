"""The pipe keeps order, frames and ends, however much is in it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import anyio
import pytest

from model_svc.engine.request import EngineRequest
from model_svc.engine_messages import Broken, CancelSequences, Progress
from model_svc.pipe import EngineEnd, ServiceEnd
from wire.messages import Prompt, TokenChunk, pack_ids

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ends() -> AsyncIterator[tuple[ServiceEnd, EngineEnd, socket.socket]]:
    ours, theirs = socket.socketpair()
    service, engine = ServiceEnd(ours), EngineEnd(theirs)
    yield service, engine, theirs
    service.close()
    theirs.close()
    await anyio.lowlevel.checkpoint()


async def test_messages_larger_than_the_kernels_buffer_arrive_whole_and_in_order(
    ends: tuple[ServiceEnd, EngineEnd, socket.socket],
) -> None:  # fmt: skip
    service, engine, _ = ends
    ids = pack_ids(range(200_000))
    sent = [EngineRequest(request_id=str(n), prompt=Prompt(token_ids=ids, num_tokens=200_000)) for n in range(3)]
    got: list[object] = []

    def read() -> None:
        while len(got) < 4:
            got.extend(engine.receive(wait=True))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, read)
        for request in sent:
            tasks.start_soon(service.send, request)
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(service.send, CancelSequences(request_id="last"))
    assert got == [*sent, CancelSequences(request_id="last")]


async def test_many_messages_in_one_read_come_out_one_by_one(
    ends: tuple[ServiceEnd, EngineEnd, socket.socket],
) -> None:  # fmt: skip
    service, engine, _ = ends
    chunk = TokenChunk(request_id="r", attempt=0, index=0, token_ids=(1,))
    for step in range(10):
        engine.send(Progress(step=step, chunks=(chunk,)))
    messages: list[object] = []
    while len(messages) < 10:
        messages += await service.receive()
    assert messages == [Progress(step=step, chunks=(chunk,)) for step in range(10)]


async def test_without_waiting_an_empty_pipe_says_so(ends: tuple[ServiceEnd, EngineEnd, socket.socket]) -> None:
    _, engine, _ = ends
    assert engine.receive(wait=False) == []


async def test_each_end_sees_the_other_one_close(ends: tuple[ServiceEnd, EngineEnd, socket.socket]) -> None:
    service, engine, theirs = ends
    engine.send(Broken(message="why"))
    theirs.close()
    assert await service.receive() == [Broken(message="why")]
    assert await service.receive() == []
    ours, mine = socket.socketpair()
    ours.close()
    with pytest.raises(EOFError):
        EngineEnd(mine).receive(wait=True)
    mine.close()
