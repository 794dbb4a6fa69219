"""The loop of every light desk: take a job, do the desk's one thing, hand it on.

    read -> span -> handle -> hand off        a HeadraceError fails the job; any other error gives it back, three times

Desks of the same process that need not wait do their part before the hand-off, so that it goes past them (`wire.step`).

All readers and jobs of a desk live in one task group; at most `concurrency` jobs are worked on at a time, and no more
are read than there is room for, so that a busy process leaves work to its siblings.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskStatus
from opentelemetry.trace import Span
from redis.exceptions import RedisError

from wire import metrics, telemetry
from wire.bus import Bus, Consumer, Delivery, HandOff
from wire.bus.neighbours import Neighbour
from wire.bus.options import MAX_DELIVERIES
from wire.errors import DeadlineExceededError, HeadraceError, RequestCancelledError
from wire.messages import RECORD_FIELDS, Job
from wire.step import Step, go_past
from wire.workers import Workers

log = logging.getLogger(__name__)

_LEAVE_S = 1.0
_OUTCOMES = {
    HandOff.DONE: metrics.HANDED_ON,
    HandOff.LOST: metrics.LOST,
    HandOff.CANCELLED: RequestCancelledError.code,
}

Handler = Callable[[Job, dict[str, Any]], Awaitable[Step | None]]
AtOnce = Callable[[Job, dict[str, Any]], Step | None]
OnMessage = Callable[[Delivery], Awaitable[None]]


async def serve_desk(
    bus: Bus,
    *,
    name: str,
    streams: Iterable[str],
    handle: Handler,
    concurrency: int = 16,
    fields: Sequence[str] | None = None,
    fields_from_behind: Sequence[str] = (),
    on_message: OnMessage | None = None,
    at_once: AtOnce | None = None,
    ahead: bool = False,
    consumer: str | None = None,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the jobs of `streams` until cancelled; what is then in work is given back to the desk's group at once.

    All processes of a desk are one group, `name`; in it this one is `consumer` (None: a name that nobody had).
    `handle(job, record)` gets the record fields named by `fields` (None: all) and returns the Step, or None when the
    job ends here. Raising a HeadraceError ends the job with it; any other exception gives the job back, and the third
    time sets it aside. `on_message(delivery)` handles what is no Job and finishes its delivery itself. `at_once` does
    what `handle` does if nothing has to be waited for, else it returns None: the desk before, in the same process, may
    call it and hand the job past this one. `fields_from_behind` are wanted, too, but only jobs have them that come back
    from a later desk, and those are never handed past. `ahead`: an edge in this process may call `handle`, which then
    always returns a Step, before it admits a job.
    """
    consumer = consumer or f"{name}-{os.urandom(6).hex()}"
    readers = [bus.consumer(stream, group=name, name=consumer) for stream in streams]
    try:
        async with anyio.create_task_group() as tasks:
            needs = tuple(RECORD_FIELDS if fields is None else fields)
            wanted = (*needs, *fields_from_behind)
            desk = _Desk(
                bus, name, handle, needs=needs, fields=wanted, on_message=on_message, at_once=at_once, ahead=ahead
            )
            workers = Workers(tasks, concurrency, desk.work)
            for reader in readers:
                tasks.start_soon(desk.read, reader, workers)
                tasks.start_soon(_keep_alive, bus, reader)
            task_status.started()
    finally:
        with anyio.move_on_after(_LEAVE_S, shield=True):
            async with anyio.create_task_group() as leaving:
                for reader in readers:
                    leaving.start_soon(reader.leave)


async def _keep_alive(bus: Bus, reader: Consumer) -> None:
    while True:
        await anyio.sleep(bus.options.claim_idle_s / 3)
        try:
            await reader.keep_alive()
        except HeadraceError as error:
            log.warning("could not keep hold of entries on %s: %r", reader.stream, error)


@dataclass(eq=False, frozen=True)
class _Desk:
    bus: Bus
    name: str
    handle: Handler
    _: KW_ONLY
    needs: tuple[str, ...]
    fields: tuple[str, ...]  # all that it wants
    on_message: OnMessage | None
    at_once: AtOnce | None
    ahead: bool

    async def read(self, reader: Consumer, workers: Workers) -> None:
        wanted = 0  # what a read that waits on the server may bring; the rest of the room is for neighbours
        neighbour = Neighbour(
            reader,
            self.fields,
            needs=self.needs,
            has_room=lambda: workers.num_free > wanted,
            accept=partial(workers.accept, reader),
            do_at_once=partial(self._do_at_once, workers, self.at_once) if self.at_once is not None else None,
            do_ahead=partial(self._do_ahead, workers) if self.ahead else None,
        )
        with (
            self.bus.neighbours.sits(reader.stream, neighbour),
            metrics.follows(self.bus, reader.stream, reader.group),
        ):
            while True:
                await workers.wait_for_room()
                wanted = (workers.num_free + 1) // 2
                for delivery in await reader.read(wanted):
                    workers.accept(reader, delivery)

    async def work(self, reader: Consumer, delivery: Delivery) -> None:
        waited_s = max(0.0, time.time() - delivery.published_at)
        started = time.perf_counter()
        try:
            outcome = await self._serve(delivery, waited_s * 1e3)
        except Exception as error:
            outcome = await self._give_back(reader, delivery, error)
        model = getattr(delivery.message, "model", "")
        metrics.note_left(self.name, model, outcome, wait_s=waited_s, work_s=time.perf_counter() - started)

    async def _serve(self, delivery: Delivery, wait_ms: float) -> str:
        """Return how the delivery left the desk."""
        try:
            return await self._serve_message(delivery, wait_ms)
        except HeadraceError as error:
            await self.bus.fail(delivery, error, desk=self.name)
            return error.code

    async def _serve_message(self, delivery: Delivery, wait_ms: float) -> str:
        job = delivery.message
        if isinstance(job, Job):
            with self._span(job) as span:
                return await self._serve_job(delivery, job, span, wait_ms)
        if self.on_message is None:
            raise TypeError(f"the {self.name} desk does not take a {type(job).__name__}")
        await self.on_message(delivery)
        return metrics.FINISHED

    def _span(self, job: Job) -> AbstractContextManager[Span]:
        attributes: dict[str, telemetry.AttributeValue] = {
            telemetry.REQUEST_MODEL: job.model,
            telemetry.REQUEST_ID: job.request_id,
            telemetry.ATTEMPT: job.attempt,
        }
        return telemetry.span(f"{self.name} {job.model}", job=job, attributes=attributes)

    async def _serve_job(self, delivery: Delivery, job: Job, span: Span, wait_ms: float) -> str:
        record = await self._record(delivery, job)
        onward, step = await self._handled(job, record, span, wait_ms)
        if step is None:
            return metrics.FINISHED if await self.bus.finish(delivery) else metrics.LOST
        onward, step = go_past(self.bus.neighbours, onward, step, record, {*self.fields})
        return _OUTCOMES[await self.bus.hand_off(delivery, onward, to=step.to, fields=step.fields)]

    async def _handled(self, job: Job, record: dict[str, Any], span: Span, wait_ms: float) -> tuple[Job, Step | None]:
        """Do our part; return the job with the time that it took, and where it goes. Raises DeadlineExceededError."""
        started, left_s = time.perf_counter(), job.deadline - time.time()
        try:
            with anyio.move_on_after(left_s) as scope:
                step = await self.handle(job, record) if left_s > 0 else None
        except HeadraceError as error:  # its way to us knows texts and ids, which its way on would keep
            raise error.with_traceback(None) from error.__cause__
        if scope.cancelled_caught or left_s <= 0:
            raise DeadlineExceededError(f"the deadline passed at the {self.name} desk")
        work_ms = (time.perf_counter() - started) * 1e3
        _note_times(span, wait_ms, work_ms)
        return self._timed((step and step.job) or job, wait_ms, work_ms), step

    async def _record(self, delivery: Delivery, job: Job) -> dict[str, Any]:
        record = delivery.record  # what came along is as new as the entry
        if record is None:
            record = await self.bus.open_fields(job, self.fields)
        if record is None:
            raise RequestCancelledError("the request was cancelled, or its record expired")
        return record

    def _timed(self, job: Job, wait_ms: float, work_ms: float) -> Job:
        timings = job.timings_ms | {f"{self.name}.wait": wait_ms, f"{self.name}.work": work_ms}
        return msgspec.structs.replace(job, timings_ms=timings)

    async def _do_ahead(self, workers: Workers, job: Job, record: Mapping[str, Any]) -> tuple[Job, Step] | None:
        """Do our part of a job that nobody has admitted yet; None: it has to come here. Raises what ends it."""
        if not workers.would_start:  # and siblings may have room
            return None
        started, outcome = time.perf_counter(), metrics.HANDED_ON
        try:
            with workers.occupied(), self._span(job) as span:
                onward, step = await self._handled(job, dict(record), span, 0.0)
        except HeadraceError as error:
            outcome = error.code
            raise
        except Exception:  # it comes here and fails here
            return None
        finally:
            metrics.note_left(self.name, job.model, outcome, wait_s=0.0, work_s=time.perf_counter() - started)
        assert step is not None, "a desk that works ahead ends no job"
        return onward, step

    def _do_at_once(
        self, workers: Workers, do_at_once: AtOnce, job: Job, record: dict[str, Any]
    ) -> tuple[Job, Step] | None:
        """Do our part of a job that is still a neighbour's; None: it has to come here. Who waits is not overtaken."""
        if not workers.are_idle:
            return None
        started = time.perf_counter()
        try:
            step = do_at_once(job, record)
        except Exception:  # it comes here and fails here, in our name
            return None
        if step is None:
            return None
        work_ms = (time.perf_counter() - started) * 1e3
        with self._span(job) as span:
            _note_times(span, 0.0, work_ms)
        metrics.note_left(self.name, job.model, metrics.HANDED_ON, wait_s=0.0, work_s=work_ms / 1e3)
        return self._timed(step.job or job, 0.0, work_ms), step

    async def _give_back(self, reader: Consumer, delivery: Delivery, error: Exception) -> str:
        log.error("the %s desk failed on %r", self.name, delivery, exc_info=error)
        try:
            if delivery.times_delivered >= MAX_DELIVERIES:
                reason = f"the {self.name} desk failed on it: {type(error).__name__}"
                await self.bus.dead_letter(delivery, reason=reason)
                return metrics.DEAD_LETTER
            await reader.release(delivery, delay_s=self.bus.options.retry_delay_s)
        except (HeadraceError, RedisError) as away:
            log.warning("%r could not be given back and will be claimed: %s", delivery, away)
            delivery.close()
        return metrics.RETRIED


def _note_times(span: Span, wait_ms: float, work_ms: float) -> None:
    span.set_attribute(telemetry.WAIT_MS, wait_ms)
    span.set_attribute(telemetry.WORK_MS, work_ms)
