"""The prefix desk: tells each job how much of its prompt is in the KV cache of which replica."""

from __future__ import annotations

import anyio
from anyio.abc import TaskStatus

from cache_svc.prefix.desk import PrefixDesk
from cache_svc.prefix.settings import PrefixSettings
from wire import topics
from wire.bus import Bus
from wire.desk import serve_desk


async def serve(settings: PrefixSettings, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Serve the prefix desk of all models until cancelled."""
    async with Bus.open(settings.redis_url) as bus:
        await serve_streams(bus, settings, PrefixDesk(bus, settings), task_status=task_status)


async def serve_streams(
    bus: Bus, settings: PrefixSettings, desk: PrefixDesk, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Keep the desk's index true, and serve the streams of all models and partitions from it."""
    async with anyio.create_task_group() as tasks:
        for model in settings.models:
            await tasks.start(desk.follow, model)
        await serve_desk(
            bus,
            name="prefix",
            streams=settings.streams(topics.prefix),
            handle=desk.handle,
            at_once=desk.at_once,
            concurrency=settings.prefix_concurrency,
            fields=("prompt",),
            task_status=task_status,
        )
