"""The prefix desk: tells each job how much of its prompt is in the KV cache of which replica."""

from __future__ import annotations

import os

import anyio
from anyio.abc import TaskStatus

from cache_svc.prefix.desk import PrefixDesk
from cache_svc.prefix.settings import PrefixSettings
from wire import topics
from wire.bus import Bus
from wire.desk import serve_desk


async def serve(settings: PrefixSettings, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Serve the prefix desk of all models until cancelled."""
    async with Bus.open(settings.redis_url) as bus, anyio.create_task_group() as tasks:
        desk = PrefixDesk(bus, settings)
        for model in settings.models:
            await tasks.start(desk.follow, model)
        await tasks.start(_jobs, bus, settings, desk)
        task_status.started()


async def _jobs(
    bus: Bus, settings: PrefixSettings, desk: PrefixDesk, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    await serve_desk(
        bus,
        name="prefix",
        streams=[topics.prefix(p, model) for p in range(settings.partitions) for model in settings.models],
        group="prefix",
        consumer=f"prefix-{os.urandom(6).hex()}",
        handle=desk.handle,
        concurrency=settings.prefix_concurrency,
        fields=("prompt",),
        at_once=desk.at_once,
        task_status=task_status,
    )
