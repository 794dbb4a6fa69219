"""The message bus: jobs go from desk to desk, everything else to inboxes, over Redis Streams.

A job's envelope is one stream entry at a time, what grows about it is one hash (the record), both in the slot of the
job's partition. An entry stays in its stream until the job has moved on, so a stream holds exactly the open work.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from wire import codec, topics
from wire.bus.consumer import Consumer
from wire.bus.delivery import Delivery, HandOff
from wire.bus.inbox import follow
from wire.bus.options import DEAD_LETTER_MAXLEN, INBOX_TTL_S, MAX_DELIVERIES, RING_MAXLEN, BusOptions
from wire.bus.route import Route
from wire.bus.scripts import (
    ADMIT,
    CANCEL,
    DROP_IF_EMPTY,
    FINISH,
    HAND_OFF,
    MARK_ENDED,
    RE_PLACE,
    SEND,
    SET_ASIDE,
    UPDATE,
)
from wire.errors import (
    DeadLetterError,
    HeadraceError,
    InternalError,
    OverloadedError,
    RequestCancelledError,
)
from wire.messages import RECORD_FIELDS, AnyMessage, Failure, Job, Placement

log = logging.getLogger(__name__)

FAILURE_MAXLEN = 20_000
"""An edge's inbox, as far as failures go. Full: the failure is dropped, the edge's deadline ends the request."""


class Counts(msgspec.Struct):
    """What went wrong on this bus so far; services export it as metrics."""

    num_lost: int = 0
    num_malformed: int = 0
    num_dead_letters: int = 0
    num_failures_dropped: int = 0


class Bus:
    """A process's access to the bus. Open it with `async with Bus.open(url) as bus`."""

    def __init__(self, route: Route, options: BusOptions) -> None:
        self.route = route
        self.options = options
        self.counts = Counts()
        self._name = os.urandom(6).hex()
        self._sent = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, options: BusOptions | None = None) -> AsyncIterator[Bus]:
        """Connect to `redis://`, `rediss://`, `unix://` or `redis+cluster://`; a cluster is also found by asking.

        Raises UnavailableError if the server does not answer within `options.patience_s`.
        """
        options = options or BusOptions()
        route = Route(url, options)
        try:
            await route.open()
            yield cls(route, options)
        finally:
            await route.aclose()

    # --- the ring -----------------------------------------------------------------------------------------------------

    async def admit(
        self, job: Job, fields: Mapping[str, msgspec.Struct], *, to: str, ttl_s: float, maxlen: int = RING_MAXLEN
    ) -> bool:
        """Write the job's record and its first entry, once; False if a job of this id was admitted before.

        Raises OverloadedError when the first stream is full.
        """
        keys = (_record_of(job), to)
        head = (self._nonce(), maxlen, int(ttl_s * 1000), time.time(), codec.encode(job))
        outcome = await self.route.run(ADMIT, keys, *head, *_flat(fields))
        if outcome < 0:
            raise OverloadedError("too many requests are waiting", retry_after_s=1.0)
        return bool(outcome)

    async def hand_off(
        self,
        delivery: Delivery,
        job: Job,
        *,
        to: str,
        fields: Mapping[str, msgspec.Struct] | None = None,
        maxlen: int = RING_MAXLEN,
    ) -> HandOff:
        """Move the job to the next stream, in one step with its acknowledgement here and its new record fields.

        A job that was cancelled (or failed elsewhere) ends here: CANCELLED, its edge has been told. Raises
        OverloadedError when the next stream is full; the job is then still ours, to be failed.
        """
        keys = (delivery.stream, _record_of(job), to)
        head = (delivery.group, delivery.entry_id, maxlen, time.time(), codec.encode(job))
        outcome = await self.route.run(HAND_OFF, keys, *head, *_flat(fields or {}))
        if outcome == 3:
            raise OverloadedError("the next desk has too much waiting", retry_after_s=1.0)
        if outcome == 2:
            ours = await self._end(job, RequestCancelledError("the request was cancelled"), "bus", delivery)
            return HandOff.CANCELLED if ours else HandOff.LOST
        delivery.close()
        return HandOff.DONE if outcome else HandOff.LOST

    async def finish(self, delivery: Delivery) -> bool:
        """Acknowledge and delete: the work this entry stood for is done. False if it was no longer ours."""
        message = delivery.message
        record = _record_of(message) if isinstance(message, Job) else delivery.stream + ":none"
        done = await self.route.run(FINISH, (delivery.stream, record), delivery.group, delivery.entry_id)
        delivery.close()
        return bool(done)

    async def fail(self, what: Job | Delivery, error: HeadraceError, *, desk: str) -> None:
        """End a job with an error: its edge gets a Failure, then the entry (given a delivery) is acknowledged.

        A job that has moved on or ended meanwhile is left alone. Killed half-way, the next owner of the entry sends the
        same Failure again; edges take the first.
        """
        if isinstance(what, Delivery):
            if isinstance(what.message, Job):
                await self._end(what.message, error, desk, what)
            else:
                await self.finish(what)
        else:
            await self._end(what, error, desk, None)

    async def _end(self, job: Job, error: HeadraceError, desk: str, delivery: Delivery | None) -> bool:
        failure = Failure(
            request_id=job.request_id,
            attempt=job.attempt,
            code=error.code,
            message=error.message,
            param=error.param,
            desk=desk,
        )
        stream = delivery.stream if delivery else _record_of(job)
        entry_id = delivery.entry_id if delivery else ""
        raw: bytes | None = await self.route.run(MARK_ENDED, (_record_of(job), stream), entry_id, codec.encode(failure))
        if raw:
            await self._tell(job.edge, raw)
        if delivery:
            await self._acknowledge(delivery)
        return bool(raw)

    async def _tell(self, edge: str, failure: bytes) -> None:
        try:
            await self._send(edge, failure, FAILURE_MAXLEN)
        except OverloadedError:
            self.counts.num_failures_dropped += 1
            log.error("inbox %s is full; a failure was dropped", edge)

    async def _acknowledge(self, delivery: Delivery) -> None:
        none = delivery.stream + ":none"
        await self.route.run(FINISH, (delivery.stream, none), delivery.group, delivery.entry_id)
        delivery.close()

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        """Set an entry aside that nobody could handle; its edge gets a Failure first."""
        self.counts.num_dead_letters += 1
        log.error("%r set aside: %s", delivery, reason)
        if isinstance(delivery.message, Job):
            error = DeadLetterError(f"{MAX_DELIVERIES} attempts at this step failed")
            job = delivery.message
            failure = Failure(
                request_id=job.request_id,
                attempt=job.attempt,
                code=error.code,
                message=error.message,
                desk=delivery.group,
            )
            keys = (_record_of(job), delivery.stream)
            raw: bytes | None = await self.route.run(MARK_ENDED, keys, delivery.entry_id, codec.encode(failure))
            if raw:
                await self._tell(job.edge, raw)
        await self.set_aside(delivery.stream, delivery.group, delivery.entry_id, reason=reason)
        delivery.close()

    async def set_aside(self, stream: str, group: str, entry_id: str, *, reason: str) -> bool:
        """Move an entry, as it is, to the dead letters of its partition."""
        keys = (stream, _dead_letters_of(stream))
        return bool(await self.route.run(SET_ASIDE, keys, group, entry_id, DEAD_LETTER_MAXLEN, reason))

    # --- the record ---------------------------------------------------------------------------------------------------

    async def record(self, partition: int, request_id: str, *names: str) -> dict[str, Any]:
        """Return the named fields of a job's record (all without names), decoded; missing ones are absent."""
        key = topics.job_record(partition, request_id)
        wanted = names or tuple(RECORD_FIELDS)
        values = await self.route.call(key, "HMGET", key, *wanted)
        pairs = zip(wanted, values, strict=True)
        return {name: codec.decode(raw, RECORD_FIELDS[name]) for name, raw in pairs if raw is not None}

    async def update_record(self, partition: int, request_id: str, fields: Mapping[str, msgspec.Struct]) -> bool:
        """Write fields of a job's record; False if the record has expired."""
        key = topics.job_record(partition, request_id)
        return bool(await self.route.run(UPDATE, (key,), *_flat(fields)))

    async def cancel(self, partition: int, request_id: str) -> Placement | None:
        """Mark a job cancelled, so that its next hand-off ends it; return where it is placed, if it is.

        A placed job must be told by a Cancel to its replica besides.
        """
        raw = await self.route.run(CANCEL, (topics.job_record(partition, request_id),))
        return codec.decode(raw, Placement) if raw else None

    # --- beside the ring ----------------------------------------------------------------------------------------------

    async def send(self, stream: str, message: AnyMessage, *, maxlen: int) -> None:
        """Add a message to an inbox, a control stream or a desk's stream.

        Raises OverloadedError when `maxlen` messages wait there unread: nothing is dropped silently.
        """
        await self._send(stream, codec.encode(message), maxlen)

    async def _send(self, stream: str, raw: bytes, maxlen: int) -> None:
        ttl_s = 0.0 if topics.partition_of(stream) is not None else INBOX_TTL_S
        sent = await self.route.run(SEND, (stream,), maxlen, int(ttl_s * 1000), self._nonce(), time.time(), raw)
        if not sent:
            raise OverloadedError(f"{stream} is full", retry_after_s=1.0)

    async def publish(self, stream: str, message: AnyMessage, *, maxlen: int) -> None:
        """Add a message to a stream that many watch; the oldest is dropped beyond about `maxlen`."""
        command = ("XADD", stream, "MAXLEN", "~", maxlen, "*", "m", codec.encode(message), "n", self._nonce())
        await self.route.call(stream, *command, "t", time.time())

    async def inbox(self, stream: str, *, start: str = "0") -> AsyncIterator[AnyMessage]:
        """Yield the messages of a stream with one reader; what was read is removed."""
        async for message in follow(self, stream, start=start, trim=True):
            yield message

    async def watch(self, stream: str, *, start: str = "0") -> AsyncIterator[AnyMessage]:
        """Yield the messages of a stream that others watch too, from the oldest kept one on (`start` "$": new ones)."""
        async for message in follow(self, stream, start=start, trim=False):
            yield message

    async def consume(self, stream: str, *, group: str, consumer: str, count: int = 16) -> AsyncIterator[Delivery]:
        """Yield what arrives for this member of a group, and what silent members left (never of a replica's stream)."""
        reader = self.consumer(stream, group=group, name=consumer)
        while True:
            for delivery in await reader.read(count):
                yield delivery

    def consumer(self, stream: str, *, group: str, name: str) -> Consumer:
        """Return a group member to read with at one's own pace."""
        return Consumer(self, stream, group=group, name=name, claims=not topics.is_replica(stream))

    async def secret(self, name: str) -> bytes:
        """Return the deployment's secret of this name, made at the first call."""
        key = topics.secret(name)
        await self.route.call(key, "SET", key, secrets.token_bytes(32), "NX")
        value: bytes = await self.route.call(key, "GET", key)
        return value

    # --- for the balancer ---------------------------------------------------------------------------------------------

    async def open_work(self, partition: int, replica_id: str) -> list[tuple[str, Job]]:
        """Return what lies on a replica's stream, oldest first: entry id and job."""
        stream = topics.replica(partition, replica_id)
        found: list[tuple[str, Job]] = []
        start = "-"
        while True:
            page = await self.route.call(stream, "XRANGE", stream, start, "+", "COUNT", 256)
            for entry_id, fields in page:
                job = _job_in(fields)
                if job is None:
                    self.counts.num_malformed += 1
                    await self.set_aside(stream, "", entry_id.decode(), reason="malformed")
                else:
                    found.append((entry_id.decode(), job))
            if len(page) < 256:
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
        outcome = await self.route.run(RE_PLACE, (old, _record_of(job), to), *head, *_flat(fields))
        if outcome == 3:
            raise OverloadedError("the replica has too much waiting", retry_after_s=1.0)
        if outcome == 2:
            stale = Delivery(stream=old, group="", consumer="", entry_id=entry_id, message=job)
            await self._end(job, RequestCancelledError("the request was cancelled"), "bus", stale)
            await self.route.call(old, "XDEL", old, entry_id)
        return bool(outcome == 1)

    async def forget_replica(self, partition: int, replica_id: str) -> bool:
        """Remove a dead replica's stream; False while work lies on it."""
        return bool(await self.route.run(DROP_IF_EMPTY, (topics.replica(partition, replica_id),)))

    def _nonce(self) -> str:
        self._sent += 1
        return f"{self._name}{self._sent:x}"


def _record_of(job: Job) -> str:
    return topics.job_record(job.partition, job.request_id)


def _flat(fields: Mapping[str, msgspec.Struct]) -> list[bytes | str]:
    flat: list[bytes | str] = []
    for name, value in fields.items():
        if not isinstance(value, RECORD_FIELDS[name]):
            raise TypeError(f"record field {name} must be a {RECORD_FIELDS[name].__name__}")
        flat += (name, codec.encode(value))
    return flat


def _dead_letters_of(stream: str) -> str:
    partition = topics.partition_of(stream)
    if partition is None:
        raise InternalError(f"{stream} belongs to no partition")
    return topics.dead_letter(partition)


def _job_in(fields: list[bytes]) -> Job | None:
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        message = codec.decode_message(values[b"m"])
    except (KeyError, msgspec.MsgspecError):
        return None
    return message if isinstance(message, Job) else None
