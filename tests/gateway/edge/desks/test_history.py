"""Calls to the history desk: answered, refused, or given up on time."""

from __future__ import annotations

import anyio
import pytest

from gateway.edge.desks.history import HistoryClient
from wire import topics
from wire.bus import Bus
from wire.errors import DeadlineExceededError, NotFoundError
from wire.messages import HistoryCall, HistoryReply

pytestmark = pytest.mark.anyio


async def played_desk(bus: Bus, client: HistoryClient, *, code: str | None = None) -> None:
    async for call in bus.inbox(topics.history(0)):
        assert isinstance(call, HistoryCall)
        client.deliver(HistoryReply(call_id="other", result="not mine"))
        client.deliver(HistoryReply(call_id=call.call_id, result=call.args, code=code, message="gone", param="id"))


async def test_a_reply_goes_to_its_caller_only(bus: Bus) -> None:
    client = HistoryClient(bus, "edge", timeout_s=60)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played_desk, bus, client)
        assert await client.call(0, "get", id="a") == {"id": "a"}
        assert await client.call(0, "get", id="b") == {"id": "b"}
        tasks.cancel_scope.cancel()


async def test_an_error_of_the_desk_is_raised_as_itself(bus: Bus) -> None:
    client = HistoryClient(bus, "edge", timeout_s=60)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: played_desk(bus, client, code="not_found"))
        with pytest.raises(NotFoundError, match="gone") as raised:
            await client.call(0, "get", id="a")
        assert raised.value.param == "id"
        tasks.cancel_scope.cancel()


async def test_a_desk_that_is_silent_is_given_up_on_and_its_late_reply_dropped(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = HistoryClient(bus, "edge", timeout_s=0.05)
    asked: list[HistoryCall] = []

    async def note(_self: Bus, _stream: str, call: HistoryCall, *, maxlen: int) -> None:
        asked.append(call)

    monkeypatch.setattr(Bus, "send", note)
    with pytest.raises(DeadlineExceededError):
        await client.call(0, "get", id="a")
    client.deliver(HistoryReply(call_id=asked[0].call_id, result=1))
