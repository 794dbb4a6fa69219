"""Reads a stream as the desk behind the one that is tested would."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from wire.bus import Bus, Delivery


async def consume(bus: Bus, stream: str, *, group: str, consumer: str) -> AsyncIterator[Delivery]:
    """Yield what arrives for this member of a group; nothing keeps it alive while it is worked on."""
    reader = bus.consumer(stream, group=group, name=consumer)
    while True:
        for delivery in await reader.read(16):
            yield delivery


def watch_late(monkeypatch: pytest.MonkeyPatch) -> anyio.Event:
    """Let nobody look at a fan-out stream before the event that is returned."""
    watch, may_look = Bus.watch, anyio.Event()

    async def late(self: Bus, stream: str, **options: Any) -> AsyncIterator[Any]:
        await may_look.wait()
        async for message in watch(self, stream, **options):
            yield message

    monkeypatch.setattr(Bus, "watch", late)
    return may_look
