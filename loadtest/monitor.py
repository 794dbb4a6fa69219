"""Listens to what reaches a Redis server: each command counts as a round trip, commands inside scripts do not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import redis.asyncio

from wire.bus import scripts
from wire.bus.script import Script

BESIDE = frozenset({"XADD status", "XADD kv", "XREAD status", "XREAD kv", "HKEYS replicas", "HSET replicas", "PING"})
"""Heartbeats and their like: they come whether anybody asks for anything or not."""

_SCRIPTS = {value.digest: name for name, value in vars(scripts).items() if isinstance(value, Script)}


@asynccontextmanager
async def watched(url: str) -> AsyncIterator[list[str]]:
    """Yield a list that holds, after the block, each command that came meanwhile: name (or script) and topic."""
    names: list[str] = []
    client = redis.asyncio.Redis.from_url(url)
    try:
        async with client.monitor() as monitor, anyio.create_task_group() as tasks:
            done = anyio.Event()

            async def listen() -> None:
                async for seen in monitor.listen():
                    if "monitoring ends" in seen["command"]:
                        done.set()
                    elif seen["client_type"] != "lua":
                        names.append(_named(seen["command"]))

            tasks.start_soon(listen)
            yield names
            await client.echo("monitoring ends")
            await done.wait()
            tasks.cancel_scope.cancel()
    finally:
        await client.aclose()


def _named(command: str) -> str:
    words = command.split()
    name = _SCRIPTS.get(words[1], words[0]) if words[0] == "EVALSHA" else words[0]
    topic = next((word.removeprefix("hr:") for word in words if word.startswith("hr:")), "")
    topic = topic.split(":")[1] if topic.startswith("{") else topic.split(":")[0]
    return f"{name} {topic}".strip()
