"""The beginning of an answer leaves in one write; nothing is kept longer than a turn of the loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from gateway.edge.connection import Joining
from gateway.edge.open_body import OpenBody
from tests.gateway.edge.asks import opened, whole
from tests.ring import Ring
from tests.script import Piece, Script, say

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.writes.append(data)

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def transport(written: Written) -> Joining:
    made: Any = written
    return Joining(made)


async def test_head_and_first_event_leave_in_one_write(transport: Joining, written: Written) -> None:
    for data in (HEAD, b"one", b"two"):
        transport.write(data)
    assert written.writes == [HEAD + b"one", b"two"]
    await asyncio.sleep(0)
    assert len(written.writes) == 2


async def test_a_head_that_nothing_follows_leaves_at_the_end_of_the_turn(transport: Joining, written: Written) -> None:
    transport.write(HEAD)
    assert written.writes == []
    await asyncio.sleep(0)
    assert written.writes == [HEAD]
    transport.write(b"one")
    assert written.writes == [HEAD, b"one"]


async def test_a_connection_is_closed_behind_the_head(transport: Joining, written: Written) -> None:
    transport.write(HEAD)
    transport.close()
    assert (written.writes, written.closing) == ([HEAD], True)
    await asyncio.sleep(0)


async def test_a_head_for_a_client_that_has_left_is_forgotten(transport: Joining, written: Written) -> None:
    transport.write(HEAD)
    written.close()
    await asyncio.sleep(0)
    assert written.writes == []


async def test_the_edge_answers_over_such_connections(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    write = Joining.write

    def note(joining: Joining, data: bytes) -> None:
        writes.append(data)
        write(joining, data)

    monkeypatch.setattr(Joining, "write", note)
    ring.replica.play(*say("one ", "two "))
    await whole(ring)
    assert any(data.startswith(b"HTTP/1.1 200") for data in writes)


async def test_the_middle_of_a_stream_is_written_with_the_news(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    write = OpenBody.write

    def note(body: OpenBody, data: bytes) -> None:
        written.append(data)
        write(body, data)

    monkeypatch.setattr(OpenBody, "write", note)
    go, end = anyio.Event(), anyio.Event()
    ring.replica.script = Script([*say("one "), Piece(b"two ", after=go)], before_end=end)
    async with opened(ring) as response:
        lines = response.aiter_lines()
        for text, then in (("one ", go), ("two ", end), ("[DONE]", None)):
            async for line in lines:
                if text in line:
                    break
            if then is not None:
                await anyio.wait_all_tasks_blocked()
                then.set()
    assert [b"two " in data for data in written] == [True]


@pytest.mark.parametrize(
    "change",
    [
        {"response_started": False},
        {"response_complete": True},
        {"disconnected": True},
        {"chunked_encoding": False},
        {"flow": SimpleNamespace(write_paused=True)},
    ],
)
def test_a_body_takes_nothing_at_once_before_behind_or_past_its_client(change: dict[str, Any]) -> None:
    now = {"response_started": True, "response_complete": False, "disconnected": False, "chunked_encoding": True}
    cycle: Any = SimpleNamespace(**now, flow=SimpleNamespace(write_paused=False))
    assert OpenBody(cycle).takes
    vars(cycle).update(change)
    assert not OpenBody(cycle).takes
