"""The beginning of an answer leaves in one write; nothing is kept longer than a turn of the loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.edge.connection import Joining
from tests.gateway.edge.asks import whole
from tests.ring import Ring
from tests.script import say

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
    monkeypatch.setattr(Joining, "write", lambda self, data: (writes.append(data), write(self, data))[1])
    ring.replica.play(*say("one ", "two "))
    await whole(ring)
    assert any(data.startswith(b"HTTP/1.1 200") for data in writes)
