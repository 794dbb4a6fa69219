"""The history desk: conversations and responses, kept in Redis and recalled for the requests that continue them."""

from __future__ import annotations

import os

import anyio
from anyio.abc import TaskStatus

from cache_svc.history.desk import HistoryDesk
from cache_svc.history.settings import HistorySettings
from wire import topics
from wire.bus import Bus
from wire.desk import serve_desk


async def serve(settings: HistorySettings, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Serve the history desk until cancelled."""
    async with Bus.open(settings.redis_url) as bus, anyio.create_task_group() as tasks:
        desk = HistoryDesk(bus, settings)
        tasks.start_soon(desk.rewriter.run)
        await tasks.start(serve_history, bus, settings, desk)
        task_status.started()


async def serve_history(
    bus: Bus, settings: HistorySettings, desk: HistoryDesk, *, task_status: TaskStatus[None]
) -> None:
    """Serve the streams of all partitions with one desk."""
    await serve_desk(
        bus,
        name="history",
        streams=[topics.history(partition) for partition in range(settings.partitions)],
        group="history",
        consumer=f"history-{os.urandom(6).hex()}",
        handle=desk.handle,
        concurrency=settings.history_concurrency,
        fields=("request",),
        on_message=desk.on_message,
        task_status=task_status,
    )
