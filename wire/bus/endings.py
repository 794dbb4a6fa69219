"""How a job ends: finished, failed, or set aside. Each admitted job ends once, and its edge hears of every bad end.

A bad end takes three steps (mark the record, tell the edge, drop the entry), because the edge's inbox lies in another
cluster slot. Killed between them, the entry is still there: its next owner finds the mark and repeats the rest.
"""

from __future__ import annotations

import logging

from wire import codec, topics
from wire.bus.delivery import Delivery
from wire.bus.fields import record_of
from wire.bus.options import DEAD_LETTER_MAXLEN, FAILURE_MAXLEN, MAX_DELIVERIES
from wire.bus.post import Post
from wire.bus.scripts import FINISH, MARK_ENDED, SET_ASIDE
from wire.errors import DeadLetterError, HeadraceError, OverloadedError
from wire.messages import Failure, Job

log = logging.getLogger(__name__)


class Endings(Post):
    """Ending jobs and other deliveries."""

    async def finish(self, delivery: Delivery) -> bool:
        """Acknowledge and delete: the work this entry stood for is done. False if it was no longer ours."""
        keys = [delivery.stream]
        if isinstance(delivery.message, Job):
            keys.append(record_of(delivery.message))
        done = await self.route.run(FINISH, tuple(keys), delivery.group, delivery.entry_id)
        delivery.close()
        return bool(done)

    async def fail(self, what: Job | Delivery, error: HeadraceError, *, desk: str) -> None:
        """End a job with an error: its edge gets a Failure, then the entry (given a delivery) is dropped.

        A job that has moved on or ended meanwhile is left alone. The first failure of a job is the one that counts.
        """
        if isinstance(what, Job):
            await self._end(what, error, desk)
            return
        if isinstance(what.message, Job):
            await self._end(what.message, error, desk, what.stream, what.entry_id)
        await self._drop(what)

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        """Set an entry aside that nobody could handle; its edge gets a Failure first."""
        if isinstance(delivery.message, Job):
            error = DeadLetterError(f"{MAX_DELIVERIES} attempts at one step failed")
            await self._end(delivery.message, error, delivery.group, delivery.stream, delivery.entry_id)
        await self.set_aside(delivery.stream, delivery.group, delivery.entry_id, reason=reason)
        delivery.close()
        self.counts.num_dead_letters += 1
        log.error("%r set aside: %s", delivery, reason)

    async def set_aside(self, stream: str, group: str, entry_id: str, *, reason: str) -> None:
        """Move an entry, as it is, to the dead letters of its partition (beside the ring: just drop it)."""
        partition = topics.partition_of(stream)
        if partition is None:
            await self.route.run(FINISH, (stream,), group, entry_id)
            return
        keys = (stream, topics.dead_letter(partition))
        await self.route.run(SET_ASIDE, keys, group, entry_id, DEAD_LETTER_MAXLEN, reason)

    async def _end(self, job: Job, error: HeadraceError, desk: str, stream: str = "", entry_id: str = "") -> bool:
        """Mark the record and tell the edge; False if the job has moved on or ended well."""
        failure = Failure(
            request_id=job.request_id,
            attempt=job.attempt,
            code=error.code,
            message=error.message,
            param=error.param,
            desk=desk,
        )
        keys = (record_of(job), stream or record_of(job))
        raw: bytes | None = await self.route.run(MARK_ENDED, keys, entry_id, codec.encode(failure))
        if not raw:
            return False
        try:
            await self._send(job.edge, raw, FAILURE_MAXLEN)
        except OverloadedError:
            self.counts.num_failures_dropped += 1
            log.error("inbox %s is full; a failure was dropped", job.edge)
        return True

    async def _drop(self, delivery: Delivery) -> None:
        await self.route.run(FINISH, (delivery.stream,), delivery.group, delivery.entry_id)
        delivery.close()
