"""What the prefix desk does with a job, and how it keeps the index of each model up to date."""

from __future__ import annotations

import logging
from typing import Any

import anyio
from anyio.abc import TaskStatus

from cache_svc.prefix.index import PrefixIndex, split
from cache_svc.prefix.ledger import EventLedger, Verdict
from cache_svc.prefix.settings import PrefixSettings
from wire import topics
from wire.block_hash import DIGEST_BYTES
from wire.bus import Bus
from wire.errors import HeadraceError, InternalError
from wire.heartbeats import Heartbeats
from wire.messages import BlocksEvicted, BlocksStored, Job, Match, Matches, Prompt, ReplicaStatus, ReportBlocks
from wire.step import Step

log = logging.getLogger(__name__)

_CONTROL_MAXLEN = 10_000  # a full control stream: the replica is stuck; the next heartbeat asks again
_MAX_MATCHES = 64  # in the job record; the balancer needs the best ones
_CHECK_EVERY_S = 0.25
_SWEEP_BLOCKS = 2048  # about 0.5 ms


class _Model:
    """The index of one model and what keeps it true."""

    def __init__(self, max_blocks: int) -> None:
        self.index = PrefixIndex(max_blocks)
        self.ledger = EventLedger(self.index)
        self.heartbeats = Heartbeats()


class PrefixDesk:
    """Follows the KV events and heartbeats of each model; answers jobs from its index.

    A replica that reports its blocks and is not heard within `unheard_s` was gone before its report was read.
    """

    def __init__(self, bus: Bus, settings: PrefixSettings, *, unheard_s: float = 60.0) -> None:
        self._bus = bus
        self._unheard_s = unheard_s
        self._models = {model: _Model(settings.prefix_max_blocks) for model in settings.models}

    def index(self, model: str) -> PrefixIndex:
        """Return the index of a model."""
        return self._models[model].index

    async def handle(self, job: Job, record: dict[str, Any]) -> Step:
        """Note in the record how many leading tokens of the prompt each replica holds."""
        return self.at_once(job, record)

    def at_once(self, job: Job, record: dict[str, Any]) -> Step:
        """Do what `handle` does: it waits for nothing."""
        prompt: Prompt | None = record.get("prompt")
        if prompt is None:
            raise InternalError("The job came to the prefix desk without a prompt.")
        matches = self.match(job.model, prompt)
        return Step(to=topics.balancer(job.partition, job.model), fields={"matches": matches})

    def match(self, model: str, prompt: Prompt) -> Matches:
        """Return the matches, longest first.

        At least one token is left to compute: the last one's logits are what the first new token is drawn from.
        """
        most = max(prompt.num_tokens - 1, 0) // prompt.block_size
        found = self.index(model).match(split(prompt.block_hashes[: most * DIGEST_BYTES]))
        best = sorted(found.items(), key=lambda item: -item[1])[:_MAX_MATCHES]
        return Matches(replicas=tuple(Match(replica_id=r, num_tokens=n * prompt.block_size) for r, n in best))

    async def follow(self, name: str, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the index of a model true, until cancelled; whatever comes after the start is heard."""
        model = self._models[name]
        events, heartbeats = [await self._bus.end(stream) for stream in (topics.kv_events(name), topics.status(name))]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow_events, name, model, events)
            tasks.start_soon(self._follow_heartbeats, name, model, heartbeats)
            tasks.start_soon(self._check, model)
            task_status.started()

    async def _follow_events(self, name: str, model: _Model, start: str) -> None:
        async for event in self._bus.watch(topics.kv_events(name), start=start):
            if not isinstance(event, BlocksStored | BlocksEvicted):
                continue
            now = anyio.current_time()
            if isinstance(event, BlocksStored) and event.reset:
                model.heartbeats.expect(event.replica_id, now + self._unheard_s)
            verdict = model.ledger.judge(event, now)
            if verdict is Verdict.ASK:
                await self._ask(event.replica_id)
            elif verdict is Verdict.APPLY:
                for _ in model.ledger.apply(event):
                    await anyio.lowlevel.checkpoint()

    async def _follow_heartbeats(self, name: str, model: _Model, start: str) -> None:
        async for status in self._bus.watch(topics.status(name), start=start):
            if not isinstance(status, ReplicaStatus):
                continue
            now = anyio.current_time()
            if not model.heartbeats.hear(status, now):
                model.ledger.forget(status.replica_id)
            elif status.state != "loading" and model.ledger.hear(status.replica_id, now):
                await self._ask(status.replica_id)

    async def _check(self, model: _Model) -> None:
        """Forget who fell silent, and give the memory of the forgotten back."""
        before = anyio.current_time()
        while True:
            await anyio.sleep(0 if model.index.sweep(_SWEEP_BLOCKS) else _CHECK_EVERY_S)
            now = anyio.current_time()
            late_s = now - before - _CHECK_EVERY_S
            before = now
            if late_s > 0:  # we were busy or stopped ourselves and could hear nobody
                model.heartbeats.grant_grace(late_s)
            for replica_id in model.heartbeats.lost(now):
                log.warning("replica %s fell silent; its blocks are forgotten", replica_id)
                model.ledger.forget(replica_id)

    async def _ask(self, replica_id: str) -> None:
        try:
            request = ReportBlocks(replica_id=replica_id)
            await self._bus.send(topics.control(replica_id), request, maxlen=_CONTROL_MAXLEN)
        except HeadraceError as error:  # asked again at the replica's next sign of life
            log.warning("could not ask %s for its blocks: %r", replica_id, error)
