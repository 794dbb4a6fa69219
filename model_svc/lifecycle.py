"""What every replica does, whatever it computes: takes the jobs placed on it, says that it is ready, and drains."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from model_svc.heartbeat import Heartbeat
from wire import metrics, topics
from wire.bus import Bus, Delivery

log = logging.getLogger(__name__)

GROUP = "replica"
_LAST_WORD_S = 1.0


class Open(Protocol):
    """A replica's requests, as far as its end needs to know them."""

    @property
    def num_open(self) -> int:
        """How many are not answered."""
        ...

    @property
    def idle(self) -> anyio.Event:
        """Set while there is none."""
        ...


async def take_jobs(
    bus: Bus, replica_id: str, partition: int, serve: Callable[[Delivery], Coroutine[Any, Any, None]], tasks: TaskGroup
) -> None:
    """Read the jobs placed on a replica in one partition until cancelled; each is served by a task of its own."""
    reader = bus.consumer(topics.replica(partition, replica_id), group=GROUP, name=replica_id)
    with metrics.follows(bus, reader.stream, GROUP):
        while True:
            for delivery in await reader.read(64):
                tasks.start_soon(serve, delivery)


def become_ready(heartbeat: Heartbeat, stop: anyio.Event, task_status: TaskStatus[None]) -> None:
    """Say that work may come, unless the end was asked for meanwhile."""
    if not stop.is_set():
        heartbeat.become("ready")
        log.info("replica is ready: %s", heartbeat.info)
        task_status.started()


async def drain(
    requests: Open, heartbeat: Heartbeat, drain_s: float, stop: anyio.Event, scope: anyio.CancelScope
) -> None:
    """When asked to stop: ask for no new work, finish what is here, leave the rest to be placed elsewhere."""
    await stop.wait()
    heartbeat.state = "draining"
    with anyio.move_on_after(_LAST_WORD_S):  # of a bus that is away; nobody can place here then
        await heartbeat.beat()  # before the end, however soon it comes: balancers must stop placing here
    with anyio.move_on_after(drain_s):
        await requests.idle.wait()
    if requests.num_open:
        log.warning("%d requests did not end in %.0f s; others take them over", requests.num_open, drain_s)
    scope.cancel()
