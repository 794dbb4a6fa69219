"""The job record: one hash per request, written a field at a time by the desk that knows it, gone after its expiry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from wire import codec, topics
from wire.bus.core import Core
from wire.bus.fields import decoded, flat, record_of
from wire.bus.scripts import CANCEL, UPDATE
from wire.messages import RECORD_FIELDS, Failure, Job, Placement

_MARKS = ("admitted", "cancelled", "ended")

TURN_FOLLOWS = b"turn"
"""The mark `cancelled` of a job whose turn is still to be stored; of others it is another one."""


class Fate(NamedTuple):
    """How it stands with a job: whether its record is there, whether it is over, with which failure, and where it is.

    `failure` None of a job that is over: it ended well.
    """

    known: bool
    cancelled: bool = False
    over: bool = False
    failure: Failure | None = None
    placement: Placement | None = None


class Records(Core):
    """Reading and writing what grows about a request."""

    async def record(self, partition: int, request_id: str, *names: str) -> dict[str, Any]:
        """Return the named fields of a job's record (all without names), decoded; missing ones are absent."""
        key = topics.job_record(partition, request_id)
        wanted = names or tuple(RECORD_FIELDS)
        return decoded(wanted, await self.route.call(key, "HMGET", key, *wanted))

    async def open_record(self, job: Job, *names: str) -> dict[str, Any] | None:
        """Like `record`, or None if nothing is left to do: the job was cancelled, has ended, or its record expired."""
        return await self.open_fields(job, names or tuple(RECORD_FIELDS))

    async def open_fields(self, job: Job, names: Sequence[str]) -> dict[str, Any] | None:
        """Like `open_record` for exactly these fields, which may be none at all."""
        wanted = tuple(names)
        key = record_of(job)
        values = await self.route.call(key, "HMGET", key, *_MARKS, *wanted)
        admitted, cancelled, ended = values[: len(_MARKS)]
        if admitted is None or cancelled is not None or ended is not None:
            return None
        return decoded(wanted, values[len(_MARKS) :])

    async def fate(self, partition: int, request_id: str) -> Fate:
        """Return how it stands with a job, for whoever was not there when it was told."""
        key = topics.job_record(partition, request_id)
        admitted, cancelled, ended, placement = await self.route.call(key, "HMGET", key, *_MARKS, "placement")
        failure = codec.decode_message(ended) if ended else None
        return Fate(
            known=admitted is not None,
            cancelled=cancelled is not None,
            over=ended is not None,
            failure=failure if isinstance(failure, Failure) else None,
            placement=codec.decode(placement, Placement) if placement else None,
        )

    async def update_record(self, partition: int, request_id: str, fields: Mapping[str, msgspec.Struct]) -> bool:
        """Write fields of a job's record; False if the record has expired."""
        key = topics.job_record(partition, request_id)
        return bool(await self.route.run(UPDATE, (key,), *flat(fields)))

    async def update_records(self, updates: Iterable[tuple[Job, Mapping[str, msgspec.Struct]]]) -> None:
        """Write fields of many jobs' records in one go; records that have expired are left out."""
        await self.route.run_many(UPDATE, [(record_of(job), tuple(flat(fields))) for job, fields in updates])

    async def cancel(self, partition: int, request_id: str, *, turn_follows: bool = False) -> Placement | None:
        """Mark a job cancelled, so that its next hand-off ends it; return where it is placed, if it is.

        `turn_follows`: what was said is still to be stored, so that whoever goes on from there waits for it.

        A placed job must be told by a Cancel to its replica besides. None also for a job that is unknown or over.
        """
        raw = await self.route.run(
            CANCEL, (topics.job_record(partition, request_id),), TURN_FOLLOWS if turn_follows else b"1"
        )
        return codec.decode(raw, Placement) if raw else None
