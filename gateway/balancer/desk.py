"""What the balancer does with a job, and how it follows the replicas of each model."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from gateway.balancer.fleet import Fleet
from gateway.balancer.policy import POLICIES
from gateway.balancer.recovery import Recovery
from gateway.balancer.registry import Registry
from gateway.balancer.settings import BalancerSettings
from gateway.balancer.token_reports import TokenReports
from wire import metrics, topics
from wire.bus import Bus
from wire.errors import DeadlineExceededError, HeadraceError, InternalError, UnavailableError
from wire.messages import Job, Matches, Placement, Prefilled, Prompt, ReplicaStatus
from wire.step import Step

log = logging.getLogger(__name__)

_CHECK_EVERY_S = 0.25
_LATE_S = 0.05  # we were busy or stopped
_OUTAGE_S = 1.0
_RECONNECT_S = 2.0  # after an outage of the bus, replicas and this process need so long to find it again


class BalancerDesk:
    """Follows the replicas of each model; gives every job one of them, and lost work another.

    A replica on record that is not heard `first_heartbeat_s` after our start is lost. The stream of a lost one is
    looked at for `linger_s` more: by then every balancer has noticed.
    """

    def __init__(
        self,
        bus: Bus,
        settings: BalancerSettings,
        *,
        first_heartbeat_s: float = 3.0,
        linger_s: float = 30.0,
        answer_s: float = 1.0,
    ) -> None:
        self._bus = bus
        self._settings = settings
        self._first_heartbeat_s = first_heartbeat_s
        policy, fetch_share = POLICIES[settings.balancer_policy], settings.balancer_fetch_share
        self._fleets = {model: Fleet(policy, fetch_share) for model in settings.models}
        self._changed = {model: anyio.Event() for model in settings.models}
        self._registries = {model: Registry(bus, model) for model in settings.models}
        self._recovering: set[str] = set()
        self.reports = TokenReports(bus, answer_s=answer_s)
        for model in settings.models:
            metrics.show_moves(model)
        self.recovery = Recovery(bus, settings.partitions, self.place, self.reports.ask, linger_s=linger_s)

    def fleet(self, model: str) -> Fleet:
        """Return what is known of a model's replicas."""
        return self._fleets[model]

    async def handle(self, job: Job, record: dict[str, Any]) -> Step:
        """Give a job to a replica."""
        return _step(job, await self.place(job, record))

    def at_once(self, job: Job, record: dict[str, Any]) -> Step | None:
        """Give a job to a replica if one is ready."""
        placement = self._choose(job, record)
        return _step(job, placement) if placement is not None else None

    async def place(self, job: Job, record: Mapping[str, Any]) -> Placement:
        """Choose a replica, waiting for one if need be.

        Raises ContextLengthExceededError, UnavailableError or DeadlineExceededError.
        """
        started = anyio.current_time()
        while (placement := self._choose(job, record)) is None:
            await self._wait_for_change(job, record["prompt"].adapter, started, anyio.current_time())
        return placement

    def _choose(self, job: Job, record: Mapping[str, Any]) -> Placement | None:
        """Choose a replica if one is ready; the job counts as its load from now on."""
        prompt: Prompt | None = record.get("prompt")
        if prompt is None:
            raise InternalError("The job came to the balancer without a prompt.")
        matches: Matches = record.get("matches") or Matches()
        cached = {match.replica_id: match.num_tokens for match in matches.replicas}
        before: Placement | None = record.get("placement")  # where the prompt was computed, or that was lost
        fleet, now = self._fleets[job.model], anyio.current_time()
        prefilled: Prefilled | None = record.get("prefilled")
        first = None
        wanted = {"affinity": job.affinity, "adapter": prompt.adapter}
        if prefilled is None:
            first = fleet.place_prefill(prompt.num_tokens, cached, now, **wanted)
        else:
            cached[prefilled.replica_id] = max(cached.get(prefilled.replica_id, 0), prefilled.num_tokens)
        chosen = first or fleet.place(prompt.num_tokens, cached, now, longest=prompt.longest, **wanted)
        if chosen is None:
            return None
        return Placement(
            replica_id=chosen.replica_id,
            attempt=job.attempt,
            cached_tokens=chosen.cached_tokens,
            source=chosen.source,
            prefill=first is not None,
            num_tokens=before.num_tokens if before is not None else 0,
            losses=before.losses if before is not None else 0,
        )

    async def _wait_for_change(self, job: Job, adapter: str, started: float, now: float) -> None:
        fleet = self._fleets[job.model]
        # Whoever ran a replica that left, or was lost, starts another: it is waited for as if it were loading.
        since = started if fleet.is_loading else fleet.left_at
        give_up = max(started + self._settings.balancer_wait_s, since + self._settings.balancer_loading_wait_s)
        left_s = give_up - now
        if left_s <= 0:
            state = "is still loading" if fleet.is_loading else "is not served by any replica now"
            who = f"The model {job.model}" + (f" with the adapter {adapter.partition('@')[0]}" if adapter else "")
            raise UnavailableError(f"{who} {state}.", retry_after_s=5.0)
        left_s = min(left_s, job.deadline - time.time())
        if left_s <= 0:
            raise DeadlineExceededError("The deadline passed before a replica was ready.")
        with anyio.move_on_after(left_s):
            await self._changed[job.model].wait()

    async def follow(self, model: str, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Follow a model's replicas from its start on and recover what lost ones held, until cancelled."""
        start = await self._bus.end(topics.status(model))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow_heartbeats, model, start, tasks)
            tasks.start_soon(self._check, model, tasks)
            task_status.started()

    async def _follow_heartbeats(self, model: str, start: str, tasks: TaskGroup) -> None:
        fleet = self._fleets[model]
        async for status in self._bus.watch(topics.status(model), start=start):
            if not isinstance(status, ReplicaStatus):
                continue
            is_new = not fleet.knows(status.replica_id)
            fleet.hear(status, anyio.current_time())
            if status.state == "gone":
                self._start_recovery(model, status.replica_id, tasks, left=not status.died)
                continue
            if is_new:
                tasks.start_soon(self._note, model, status.replica_id)
            event, self._changed[model] = self._changed[model], anyio.Event()
            event.set()

    async def _check(self, model: str, tasks: TaskGroup) -> None:
        """Find the replicas that fell silent; our own silence (stopped, bus away) is not theirs."""
        fleet = self._fleets[model]
        before = anyio.current_time()
        look_at_record = before + self._first_heartbeat_s
        while True:
            await anyio.sleep(_CHECK_EVERY_S)
            known = await self._known(model)
            now = anyio.current_time()
            late_s = now - before - _CHECK_EVERY_S
            before = now
            if late_s > _LATE_S:
                grace_s = late_s + (_RECONNECT_S if late_s > _OUTAGE_S else 0.0)
                fleet.grant_grace(grace_s)
                look_at_record += grace_s
            for replica_id in fleet.lost(now):
                log.warning("replica %s fell silent; its work is placed elsewhere", replica_id)
                self._start_recovery(model, replica_id, tasks)
            if now > look_at_record:
                for replica_id in known:
                    if not fleet.knows(replica_id):
                        self._start_recovery(model, replica_id, tasks)

    async def _known(self, model: str) -> list[str]:
        try:
            return await self._registries[model].replicas()
        except HeadraceError as error:
            log.warning("the bus does not answer: %r", error)
            return []

    async def _note(self, model: str, replica_id: str) -> None:
        try:
            await self._registries[model].note(replica_id)
        except HeadraceError as error:
            log.warning("could not put replica %s on record: %r", replica_id, error)

    def _start_recovery(self, model: str, replica_id: str, tasks: TaskGroup, *, left: bool = False) -> None:
        if replica_id not in self._recovering:
            self._recovering.add(replica_id)
            self._fleets[model].left_at = anyio.current_time()
            tasks.start_soon(self._recover, model, replica_id, left)

    async def _recover(self, model: str, replica_id: str, left: bool) -> None:
        try:
            if await self.recovery.recover(replica_id, lambda: self._fleets[model].knows(replica_id), left=left):
                await self._registries[model].forget(replica_id)
        except HeadraceError as error:  # it stays on record, so the next check begins again
            log.warning("recovery of replica %s was interrupted: %r", replica_id, error)
        finally:
            self._recovering.discard(replica_id)


def _step(job: Job, placement: Placement) -> Step:
    return Step(to=topics.replica(job.partition, placement.replica_id), fields={"placement": placement})
