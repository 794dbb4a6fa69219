"""The history desk: conversations and responses, kept in Redis and recalled for the requests that continue them."""

from __future__ import annotations

import anyio
from anyio.abc import TaskStatus

from cache_svc.history.desk import HistoryDesk
from cache_svc.history.settings import HistorySettings
from wire import topics
from wire.bus import Bus
from wire.desk import serve_desk


async def serve(settings: HistorySettings, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Serve the history desk until cancelled."""
    async with Bus.open(settings.redis_url) as bus:
        await serve_streams(bus, settings, HistoryDesk(bus, settings), task_status=task_status)


async def serve_streams(
    bus: Bus, settings: HistorySettings, desk: HistoryDesk, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Serve the streams of all partitions with one desk, and remove from the server's file what is deleted."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.rewriter.run)
        await serve_desk(
            bus,
            name="history",
            streams=[topics.history(partition) for partition in range(settings.partitions)],
            handle=desk.handle,
            on_message=desk.on_message,
            concurrency=settings.history_concurrency,
            fields=("request",),
            task_status=task_status,
        )
