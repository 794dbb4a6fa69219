"""The balancer: places every job on a replica, and the work of lost replicas on others."""

from __future__ import annotations

import anyio
from anyio.abc import TaskStatus

from gateway.balancer.desk import BalancerDesk
from gateway.balancer.settings import BalancerSettings
from wire import topics
from wire.bus import Bus
from wire.desk import serve_desk


async def serve(settings: BalancerSettings, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Serve the balancer of all models until cancelled."""
    async with Bus.open(settings.redis_url) as bus:
        await serve_streams(bus, settings, BalancerDesk(bus, settings), task_status=task_status)


async def serve_streams(
    bus: Bus,
    settings: BalancerSettings,
    desk: BalancerDesk,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Follow the replicas of all models, and place on them what comes on the streams."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.reports.run)
        for model in settings.models:
            await tasks.start(desk.follow, model)
        await serve_desk(
            bus,
            name="balancer",
            streams=settings.streams(topics.balancer),
            handle=desk.handle,
            at_once=desk.at_once,
            concurrency=settings.balancer_concurrency,
            fields=("prompt", "matches"),
            fields_from_behind=("prefilled", "placement"),
            task_status=task_status,
        )
