"""Calls to the history desk: answered, refused, or given up on time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.edge.desks.history import HistoryClient
from gateway.edge.identity import new_id
from gateway.edge.service import serve
from gateway.edge.settings import EdgeSettings
from tests.ports import free_port
from wire import topics
from wire.bus import Bus
from wire.errors import DeadlineExceededError, HeadraceError, NotFoundError, UnavailableError
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


async def test_who_waits_when_the_edge_goes_is_told_so_and_nobody_asks_any_more(bus: Bus) -> None:
    client = HistoryClient(bus, "edge", timeout_s=3600)
    told: list[HeadraceError] = []

    async def ask() -> None:
        with pytest.raises(UnavailableError, match="stopping") as raised:
            await client.call(0, "get", id="a")
        told.append(raised.value)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            async for _ in bus.inbox(topics.history(0)):
                break
            client.close()
        await ask()
    assert len(told) == 2


async def test_an_edge_that_stops_waits_for_no_desk_on_behalf_of_a_client(
    bus: Bus, bus_url: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No history desk runs, as when all of a house is stopped at once."""
    told: list[BaseException] = []
    ask = HistoryClient.ask

    async def ask_and_note(*args: Any) -> Any:
        try:
            return await ask(*args)
        except BaseException as error:
            told.append(error)
            raise

    monkeypatch.setattr(HistoryClient, "ask", ask_and_note)
    monkeypatch.setattr("gateway.edge.server._CLOSE_S", 30.0)  # then who still waits is cancelled
    names = {"models": (tiny_model.name,), "model_dir": str(tiny_model.parent), "redis_url": bus_url, "partitions": 1}
    settings = EdgeSettings(**names, port=free_port(), history_timeout_s=3600.0, drain_s=0.0)  # type: ignore[arg-type]
    async with anyio.create_task_group() as edge:
        await edge.start(serve, settings)
        async with await anyio.connect_tcp("127.0.0.1", settings.port) as client:
            await client.send(f"GET /v1/responses/{new_id('resp')} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            async for _ in bus.inbox(topics.history(0)):
                break
            edge.cancel_scope.cancel()
    assert [type(error) for error in told] == [UnavailableError]
