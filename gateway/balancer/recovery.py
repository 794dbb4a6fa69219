"""Moves what a lost replica held to others: attempt + 1, from the job record.

Only balancers do this, and any number of them may at once: moving an entry succeeds for whoever finds it still there.
What was generated goes along: its edge is asked for it, and if that is gone too, the record's last checkpoint serves.
A replica counted as lost may still get work from a balancer that has not noticed yet, so its stream is looked at again
until that can no longer be.

What was on replicas in a row when they died, and gained next to nothing on any, may be what killed them. After two
losses each replica tries it apart from others (`model_svc/quarantine.py`), and from then on only trials count; at
`MAX_LOSSES` it is given up. Answers that go on do not count, nor do replicas that left on purpose.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import msgspec

from wire import metrics, topics
from wire.bus import Bus, Delivery
from wire.errors import DeadLetterError, DeadlineExceededError, HeadraceError, InternalError
from wire.messages import ID_BYTES, PROOF_TOKENS, Checkpoint, Holder, Job, Placement, Trial

log = logging.getLogger(__name__)

Ask = Callable[[str, str], Awaitable[Checkpoint | None]]
"""Asks an edge for the tokens it has of a request; None: it is gone, or has nothing to do with it."""

Place = Callable[[Job, Mapping[str, Any]], Awaitable[Placement]]
"""Chooses a replica for a job by its record; waits for one, or raises a HeadraceError."""

MAX_LOSSES = 5

_LOOK_AGAIN_S = 1.0
_FIELDS = ("prompt", "matches", "holder", "checkpoint", "placement", "trial", "prefilled")
_AT_ONCE = 16


class Recovery:
    """Re-places the open work of replicas that are lost."""

    def __init__(self, bus: Bus, partitions: int, place: Place, ask: Ask, *, linger_s: float = 30.0) -> None:
        self._bus = bus
        self._ask = ask
        self._partitions = range(partitions)
        self._place = place
        self._linger_s = linger_s
        self.num_replaced = 0

    async def recover(self, replica_id: str, is_back: Callable[[], bool], *, left: bool = False) -> bool:
        """Move everything away from a replica until nothing can come any more; False if it came back to life first.

        `left`: it said so itself.
        """
        until = anyio.current_time() + self._linger_s
        while not is_back():
            found = 0
            for partition in self._partitions:
                found += await self._move_all(partition, replica_id, is_back, left=left)
            if anyio.current_time() > until and not found:
                emptied = [await self._bus.forget_replica(p, replica_id) for p in self._partitions]
                log.info("replica %s is forgotten (%d streams removed)", replica_id, sum(emptied))
                return True
            await anyio.sleep(_LOOK_AGAIN_S)
        return False

    async def _move_all(self, partition: int, replica_id: str, is_back: Callable[[], bool], *, left: bool) -> int:
        work = await self._bus.open_work(partition, replica_id)
        limiter = anyio.CapacityLimiter(_AT_ONCE)

        async def move(entry_id: str, job: Job) -> None:
            async with limiter:
                if not is_back():
                    await self.move(replica_id, entry_id, job, left=left)

        async with anyio.create_task_group() as tasks:
            for entry_id, job in work:
                tasks.start_soon(move, entry_id, job)
        return len(work)

    async def move(self, replica_id: str, entry_id: str, job: Job, *, left: bool = False) -> None:
        """Place one job elsewhere, or end it with the reason why that cannot be."""
        try:
            if time.time() > job.deadline:
                raise DeadlineExceededError("The deadline passed while its replica was lost.")
            again = msgspec.structs.replace(job, attempt=job.attempt + 1)
            record = await self._bus.record(job.partition, job.request_id, *_FIELDS)
            placement = await self._place(again, record)
            checkpoint = await self._checkpoint(job, record)  # last: until then tokens may come in
            num_tokens = sum(map(len, checkpoint.token_ids.values())) // ID_BYTES
            losses = _losses(job, record, num_tokens, left=left)
            to = topics.replica(job.partition, placement.replica_id)
            placement = msgspec.structs.replace(placement, num_tokens=num_tokens, losses=losses)
            fields = {"placement": placement, "checkpoint": checkpoint}
            if await self._bus.re_place(job.partition, replica_id, entry_id, again, to=to, fields=fields):
                self.num_replaced += 1
                metrics.note_moved(job.model, num_tokens)
                said = "request %s moved from %s to %s with %d tokens"
                log.warning(said, job.request_id, replica_id, placement.replica_id, num_tokens)
        except HeadraceError as error:
            await self._give_up(replica_id, entry_id, job, error)
        except Exception:
            log.exception("could not move request %s away from %s", job.request_id, replica_id)
            await self._give_up(replica_id, entry_id, job, InternalError("Its replica was lost."))

    async def _checkpoint(self, job: Job, record: Mapping[str, Any]) -> Checkpoint:
        holder: Holder | None = record.get("holder")
        shown = await self._ask(holder.edge if holder is not None else job.edge, job.request_id)
        kept: Checkpoint | None = record.get("checkpoint")
        return merged(shown or Checkpoint(attempt=job.attempt), kept or Checkpoint(attempt=job.attempt))

    async def _give_up(self, replica_id: str, entry_id: str, job: Job, error: HeadraceError) -> None:
        stream = topics.replica(job.partition, replica_id)
        stale = Delivery(stream=stream, group="", consumer="", entry_id=entry_id, message=job)
        try:
            await self._bus.fail(stale, error, desk="balancer")
            await self._bus.route.call(stream, "XDEL", stream, entry_id)
        except HeadraceError as unreachable:  # the bus is away: the entry is found again at the next look
            log.warning("could not end request %s: %r", job.request_id, unreachable)


def _losses(job: Job, record: Mapping[str, Any], num_tokens: int, *, left: bool) -> int:
    """Return how many replicas were lost in vain, this one included. Raises DeadLetterError when these are too many."""
    before: Placement | None = record.get("placement")
    trial: Trial | None = record.get("trial")
    if before is None or num_tokens >= before.num_tokens + PROOF_TOKENS:
        return 0
    only_waited = before.is_suspect and (trial is None or trial.attempt != job.attempt)
    losses = before.losses + (not left and not only_waited)
    if losses >= MAX_LOSSES:
        raise DeadLetterError(f"{losses} replicas in a row were lost while they worked on this request")
    return losses


def merged(shown: Checkpoint, kept: Checkpoint) -> Checkpoint:
    """Return the longer tokens of each choice: an edge that has just taken a request over has fewer than the record.

    One is always a prefix of the other; an edge that has the shorter one asks for the rest.
    """
    longer = {
        choice: max((shown, kept), key=lambda one: len(one.token_ids.get(choice, b"")))
        for choice in sorted({*shown.token_ids, *kept.token_ids})
    }
    return Checkpoint(
        attempt=max(shown.attempt, kept.attempt),
        token_ids={choice: one.token_ids[choice] for choice, one in longer.items()},
        marks={choice: one.marks[choice] for choice, one in longer.items() if choice in one.marks},
        ended=shown.ended,
    )
