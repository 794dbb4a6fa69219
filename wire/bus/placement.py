"""What the balancer alone may do: look at a replica's open work and move it, for replica streams are never claimed."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from wire import codec, topics
from wire.bus.endings import Endings
from wire.bus.fields import fields_of, flat, record_of
from wire.bus.options import RING_MAXLEN
from wire.bus.scripts import DROP_IF_EMPTY, RE_PLACE, REMOVE
from wire.errors import OverloadedError, RequestCancelledError
from wire.messages import Job

_PAGE = 256


class Placing(Endings):
    """Open work of replicas."""

    async def open_work(self, partition: int, replica_id: str) -> list[tuple[str, Job]]:
        """Return what lies on a replica's stream, oldest first: entry id and job."""
        stream = topics.replica(partition, replica_id)
        found: list[tuple[str, Job]] = []
        start = "-"
        while True:
            page = await self.route.call(stream, "XRANGE", stream, start, "+", "COUNT", _PAGE)
            for raw_id, entry in page:
                if (job := _job_in(entry)) is not None:
                    found.append((raw_id.decode(), job))
                else:
                    self.counts.num_malformed += 1
                    await self.set_aside(stream, "", raw_id.decode(), reason="malformed")
            if len(page) < _PAGE:
                return found
            start = "(" + page[-1][0].decode()

    async def re_place(
        self,
        partition: int,
        old_replica_id: str,
        entry_id: str,
        job: Job,
        *,
        to: str,
        fields: Mapping[str, msgspec.Struct],
        maxlen: int = RING_MAXLEN,
    ) -> bool:
        """Move a job from a dead replica's stream to another stream; False if it is no longer there, or over.

        A cancelled job is removed and its edge told. Raises OverloadedError when the new stream is full.
        """
        old = topics.replica(partition, old_replica_id)
        head = (entry_id, maxlen, time.time(), codec.encode(job))
        outcome = await self.route.run(RE_PLACE, (old, record_of(job), to), *head, *flat(fields))
        if outcome == 3:
            raise OverloadedError("the replica has too much waiting", retry_after_s=1.0)
        if outcome == 2:
            await self._end(job, RequestCancelledError("the request was cancelled"), "bus", old, entry_id)
            await self.route.run(REMOVE, (old,), entry_id)
        return bool(outcome == 1)

    async def forget_replica(self, partition: int, replica_id: str) -> bool:
        """Remove a dead replica's stream; False while work lies on it."""
        return bool(await self.route.run(DROP_IF_EMPTY, (topics.replica(partition, replica_id),)))


def _job_in(entry: list[bytes]) -> Job | None:
    try:
        message = codec.decode_message(fields_of(entry)[b"m"])
    except (KeyError, msgspec.MsgspecError):
        return None
    return message if isinstance(message, Job) else None
