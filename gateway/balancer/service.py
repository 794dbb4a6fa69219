"""The balancer: places every job on a replica, and the work of lost replicas on others."""

from __future__ import annotations

import os

import anyio
from anyio.abc import TaskStatus

from gateway.balancer.desk import BalancerDesk
from gateway.balancer.settings import BalancerSettings
from wire import topics
from wire.bus import Bus
from wire.desk import serve_desk


async def serve(settings: BalancerSettings, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Serve the balancer of all models until cancelled."""
    async with Bus.open(settings.redis_url) as bus, anyio.create_task_group() as tasks:
        desk = BalancerDesk(bus, settings)
        for model in settings.models:
            await tasks.start(desk.follow, model)
        await tasks.start(_jobs, bus, settings, desk)
        task_status.started()


async def _jobs(
    bus: Bus,
    settings: BalancerSettings,
    desk: BalancerDesk,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.reports.run)
        await serve_desk(
            bus,
            name="balancer",
            streams=[topics.balancer(p, model) for p in range(settings.partitions) for model in settings.models],
            group="balancer",
            consumer=f"balancer-{os.urandom(6).hex()}",
            handle=desk.handle,
            concurrency=settings.balancer_concurrency,
            fields=("prompt", "matches"),
            at_once=desk.at_once,
            task_status=task_status,
        )
