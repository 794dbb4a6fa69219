"""Room for pictures: who asks first gets it first, nothing is lost on the way, and no request is too large for ever."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from model_svc.pictures.room import Room

pytestmark = pytest.mark.anyio


async def settled() -> None:
    """Let all tasks run up to where they wait."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


async def test_many_pictures_are_not_overtaken_by_few() -> None:
    room, began = Room(4), list[str]()
    held = await room.take(3)

    async def ask(name: str, count: int) -> None:
        await room.take(count)
        began.append(name)

    async with anyio.create_task_group() as tasks:
        for name, count in (("many", 4), ("few", 1)):
            tasks.start_soon(ask, name, count)
            await settled()
        assert began == []
        room.let_go(held)
        await settled()
        assert began == ["many"]
        room.let_go(4)
    assert began == ["many", "few"]


async def test_whoever_stops_waiting_takes_nothing() -> None:
    room = Room(2)
    held = await room.take(2)
    with anyio.move_on_after(0):
        await room.take(1)
    room.let_go(held)
    assert await room.take(2) == 2


async def test_more_pictures_than_fit_go_alone() -> None:
    room = Room(2)
    assert await room.take(5) == 2
    room.let_go(2)
    assert await room.take(1) == 1
