"""Reads a stream as the desk behind the one that is tested would."""

from __future__ import annotations

from collections.abc import AsyncIterator

from wire.bus import Bus, Delivery


async def consume(bus: Bus, stream: str, *, group: str, consumer: str) -> AsyncIterator[Delivery]:
    """Yield what arrives for this member of a group; nothing keeps it alive while it is worked on."""
    reader = bus.consumer(stream, group=group, name=consumer)
    while True:
        for delivery in await reader.read(16):
            yield delivery
