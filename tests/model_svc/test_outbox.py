"""The outbox: tokens go out at once, and all of them arrive whatever becomes of the line that they are on."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from model_svc.open_requests import OpenRequest, OpenRequests
from model_svc.outbox import Outbox
from tests.wire.conftest import make_relay  # noqa: F401 - a fixture
from wire import topics
from wire.bus import Bus
from wire.errors import RequestCancelledError
from wire.messages import AnyMessage, EndReasoning, Job, TokenBatch, TokenChunk

pytestmark = pytest.mark.anyio

EDGE = topics.edge("e")
COUNT = 12


@pytest.fixture(autouse=True)
def one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slow machine see plain commands, too: the script looks at a stream once, however long ago that was."""
    monkeypatch.setattr("wire.bus.courier.CHECK_S", 1e9)


def attempt(number: int) -> OpenRequest:
    deadline = time.time() + 60
    return OpenRequest(Job(request_id="r", partition=0, model="m", edge=EDGE, deadline=deadline, attempt=number))


class Talk:
    """One request that says a token at a time through an outbox; its edge keeps what came, by index."""

    def __init__(self, far: Bus, near: Bus) -> None:
        self.request = attempt(0)
        self.outbox = Outbox(far, OpenRequests(), replica_id="m-a", model="m")
        self.tokens: dict[int, int] = {}
        self._near = near
        self._news = anyio.Event()

    def say(self, number: int) -> None:
        """Take a token from the engine; the last one ends the request."""
        end = "length" if number == COUNT - 1 else None
        chunk = TokenChunk(request_id="r", attempt=0, index=number, token_ids=(100 + number,), finish_reason=end)
        self.request.add(chunk)
        self.outbox.put(number, self.request)
        self.outbox.flush()

    async def listen(self) -> None:
        """Be the edge."""
        async for message in self._near.inbox(EDGE):
            assert isinstance(message, TokenBatch)
            for chunk in message.chunks:
                self.tokens |= dict(enumerate(chunk.token_ids, chunk.index))
            self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition, looked at when something came."""
        with anyio.fail_after(60):
            while not holds():
                self._news = anyio.Event()
                await self._news.wait()


@asynccontextmanager
async def talk(bus: Bus, relay: Any) -> AsyncIterator[Talk]:
    async with anyio.create_task_group() as tasks:
        await tasks.start(relay.serve)
        async with Bus.open(relay.url, bus.options) as far:
            one = Talk(far, bus)
            tasks.start_soon(one.listen)
            async with anyio.create_task_group() as sender:
                sender.start_soon(one.outbox.run)
                yield one
                sender.cancel_scope.cancel()
        await relay.until_left()
        tasks.cancel_scope.cancel()


async def test_once_there_is_a_way_a_token_is_one_plain_command(bus: Bus, make_relay: Any) -> None:  # noqa: F811
    relay, commands = make_relay(), []

    async def note(command: list[bytes]) -> None:
        commands.append(command[0])

    relay.before = note
    async with talk(bus, relay) as one:
        for number in range(COUNT):
            one.say(number)
            await one.until(lambda: len(one.tokens) > number)  # noqa: B023
        with anyio.fail_after(60):
            await one.request.settled.wait()
    assert one.tokens == {number: 100 + number for number in range(COUNT)}
    assert commands.count(b"XADD") > COUNT // 2


async def test_what_was_under_way_on_a_lost_line_is_sent_again(bus: Bus, make_relay: Any) -> None:  # noqa: F811
    relay, lost = make_relay(), 0

    async def cut(command: list[bytes]) -> None:
        nonlocal lost
        if command[0] == b"XADD" and not lost:
            lost += 1
            await relay.cut()
            raise anyio.BrokenResourceError  # the command goes no further

    relay.before = cut
    async with talk(bus, relay) as one:
        for number in range(COUNT):
            one.say(number)
            if number < COUNT // 2:
                await one.until(lambda: len(one.tokens) > number)  # noqa: B023
        with anyio.fail_after(60):
            await one.request.settled.wait()
        await one.until(lambda: len(one.tokens) == COUNT)
    assert lost
    assert one.tokens == {number: 100 + number for number in range(COUNT)}


async def test_a_later_attempt_is_heard_though_the_edge_refuses_what_the_one_before_said(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model_svc.outbox.EDGE_MAXLEN", 1)
    await bus.send(EDGE, EndReasoning(request_id="x"), maxlen=1)  # it is full
    old, new = attempt(0), attempt(1)
    outbox = Outbox(bus, OpenRequests(), replica_id="m-a", model="m")
    send_many, refused = bus.send_many, anyio.Event()

    async def meanwhile(messages: Iterable[tuple[str, AnyMessage]], *, maxlen: int) -> list[str]:
        if old.error is None:
            old.fail(RequestCancelledError("a later attempt of this request took over"))
            new.add(TokenChunk(request_id="r", attempt=1, index=0, token_ids=(7,), finish_reason="stop"))
            outbox.put(2, new)
        full = await send_many(messages, maxlen=maxlen)
        refused.set()
        return full

    monkeypatch.setattr(bus, "send_many", meanwhile)
    old.add(TokenChunk(request_id="r", attempt=0, index=0, token_ids=(7,)))
    outbox.put(1, old)
    outbox.flush()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outbox.run)
        with anyio.fail_after(60):
            await refused.wait()
            async for message in bus.inbox(EDGE):  # which makes room
                if isinstance(message, TokenBatch):
                    assert [chunk.attempt for chunk in message.chunks] == [1]
                    break
            await new.settled.wait()
        tasks.cancel_scope.cancel()
