"""Suspects go into the engine one by one, when all before them have said something; others wait meanwhile."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest

from model_svc.quarantine import Quarantine
from wire import metrics, topics
from wire.bus import Bus
from wire.messages import Job, Placement, Trial

pytestmark = pytest.mark.anyio

SUSPECT = Placement(replica_id="a", attempt=2, losses=2)
PLAIN = Placement(replica_id="a", attempt=1, losses=1)


def num_trials() -> float:
    return metrics.REGISTRY.get_sample_value("headrace_trials_total", {"model": "m"}) or 0.0


class Door:
    """Lets requests in, and knows who is inside."""

    def __init__(self, bus: Bus, tasks: Any) -> None:
        self.bus, self.tasks = bus, tasks
        self.quarantine = Quarantine(bus)
        self.inside: list[str] = []
        self.scopes: dict[str, anyio.CancelScope] = {}

    async def come(self, name: str, placement: Placement | None = None) -> None:
        job = Job(request_id=name, partition=0, model="m", edge="e", deadline=time.time() + 60, attempt=2)
        await self.bus.admit(job, {}, to=topics.balancer(0, "m"), ttl_s=60)
        self.tasks.start_soon(self._enter, job, placement)
        await anyio.wait_all_tasks_blocked()

    async def _enter(self, job: Job, placement: Placement | None) -> None:
        with anyio.CancelScope() as self.scopes[job.request_id]:
            await self.quarantine.admit(job.request_id, job, placement)
            self.inside.append(job.request_id)

    async def until_inside(self, *names: str) -> None:
        with anyio.fail_after(60):
            while self.inside != list(names):
                await anyio.sleep(0.005)


async def test_a_suspect_waits_for_those_before_it_and_those_behind_wait_for_it(bus: Bus) -> None:
    async with anyio.create_task_group() as tasks:
        door = Door(bus, tasks)
        for name, placement in (("a", None), ("b", PLAIN), ("s1", SUSPECT), ("s2", SUSPECT), ("c", None)):
            await door.come(name, placement)
        assert door.inside == ["a", "b"]
        door.quarantine.prove("a")
        await anyio.wait_all_tasks_blocked()
        assert door.inside == ["a", "b"]
        tried = num_trials()
        door.quarantine.prove("b")
        await door.until_inside("a", "b", "s1")
        assert num_trials() == tried + 1
        assert (await bus.record(0, "s1", "trial"))["trial"] == Trial(attempt=2)
        assert "trial" not in await bus.record(0, "s2", "trial")
        door.quarantine.prove("s1")
        await door.until_inside("a", "b", "s1", "s2")
        door.quarantine.prove("s2")
        await door.until_inside("a", "b", "s1", "s2", "c")


async def test_a_suspect_that_gives_up_keeps_nobody_waiting(bus: Bus) -> None:
    async with anyio.create_task_group() as tasks:
        door = Door(bus, tasks)
        for name, placement in (("a", None), ("s", SUSPECT), ("b", None)):
            await door.come(name, placement)
        assert door.inside == ["a"]
        door.scopes["s"].cancel()
        await door.until_inside("a", "b")
        door.quarantine.prove("unknown")
