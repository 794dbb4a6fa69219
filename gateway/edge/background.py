"""Responses that are made in the background: no client is needed for them to go on, nor the edge that began them.

The edge that makes one writes its events into a log (`event_log`) that any edge can read, and renews its lease. When it
dies, or leaves, another edge takes the response over: the tokens come again from the first, those that the log has told
of are taken in silently, and the log goes on where it ended. If the end cannot be stored (the store is full), the lease
is left to run out, so that it is tried again for as long as the request is remembered.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import anyio
from anyio.abc import TaskGroup, TaskStatus
from opentelemetry.trace import SpanContext

from gateway.edge import jobs
from gateway.edge.admits import Admits
from gateway.edge.event_log import START, Entry, EventLog
from gateway.edge.generation import Generation
from gateway.edge.identity import partition_of, root_of
from gateway.edge.leases import Leases
from gateway.edge.readership import Readership
from gateway.edge.schema.responses_reply import ResponsesReply
from gateway.edge.settings import EdgeSettings
from gateway.edge.streaming import Block
from wire.bus import Bus
from wire.errors import HeadraceError, NotFoundError, RequestCancelledError, UnavailableError
from wire.messages import Images, Request

logger = logging.getLogger(__name__)

OPERATION = "chat"
_PACE_S = 0.05  # between two blocks of events: what comes meanwhile is joined
_DROP_S = 2.0
_MOST_WAITING = 32  # readers that wait on the bus, each on a connection of its own
_LOOK_S = 0.05  # how often readers beyond these look for new events
_END_S = 2.0  # for the end of what was cancelled; if its edge is dead, that comes later than a client would wait


class NotTheWriterError(Exception):
    """Another edge has taken the response over, or it was deleted."""


class CannotWriteError(Exception):
    """The events cannot be written now; the response is not at fault."""


class Background:
    """What one edge makes in the background, and what it takes over from others."""

    def __init__(self, edge: Admits, settings: EdgeSettings, bus: Bus, inbox: str, tasks: TaskGroup) -> None:
        lease_s = settings.background_lease_s
        self._edge = edge
        self._settings = settings
        self._bus = bus
        self._inbox = inbox
        self._tasks = tasks
        self._look_s = lease_s / 4
        self._num_waiting = 0
        self._readership = Readership(bus, settings.partitions, look_s=self._look_s)
        self._runs: dict[str, anyio.CancelScope] = {}
        self._leases = [Leases(bus.route, number, lease_s=lease_s) for number in range(settings.partitions)]

    def log(self, response_id: str) -> EventLog:
        """Return the log of a response."""
        partition, ttl_s = self._partition(response_id), self._settings.background_events_s
        return EventLog(self._bus.route, partition, response_id, writer=self._inbox, ttl_s=ttl_s)

    async def has(self, response_id: str) -> bool:
        """Tell whether events of a response are kept."""
        return await self.log(response_id).newest() is not None

    async def start(self, request: Request, parent: SpanContext | None, images: Images | None = None) -> ResponsesReply:
        """Admit a request and let it run. Raises what admission raises."""
        reply: ResponsesReply = await self._tasks.start(self._begin, request, parent, images)
        return reply

    async def cancel(self, response_id: str) -> None:
        """Stop a response wherever it is; whoever makes it stores what there is. One that is over stays as it is."""
        partition = self._partition(response_id)
        await jobs.cancel(self._bus, partition, response_id, reason="cancelled", turn_follows=True)

    async def ended(self, response_id: str) -> None:
        """Wait until a response that was cancelled is stored, but not long."""
        log = self.log(response_id)
        with anyio.move_on_after(_END_S):
            newest = await log.newest()
            while newest is not None and not newest.last:
                entries = await self._news(log, newest.entry_id)
                newest = entries[-1] if entries else await log.newest()

    async def events(self, response_id: str, after: int) -> AsyncGenerator[Block, None]:
        """Yield the events with a number above `after` as they are written, to the last one."""
        with self._readership.reads(response_id):
            async with aclosing(self._events(response_id, after)) as blocks:
                async for block in blocks:
                    yield block

    async def _events(self, response_id: str, after: int) -> AsyncGenerator[Block, None]:
        log = self.log(response_id)
        place, entries = START, await log.read()
        while True:
            for entry in entries:
                place = entry.entry_id
                data = b"".join(entry.events(after, with_ids=True))
                if data or entry.last:
                    yield Block(data, last=entry.last)
                if entry.last:
                    return
            entries = await self._news(log, place)
            if not entries and await self._is_gone(response_id, log):
                return

    async def _news(self, log: EventLog, place: str) -> list[Entry]:
        """Return what is written behind a place as soon as it is, or nothing after a while."""
        if self._num_waiting >= _MOST_WAITING:
            await anyio.sleep(_LOOK_S)
            return await log.read(place)
        self._num_waiting += 1
        try:
            return await log.wait(place, wait_s=self._bus.options.block_s)
        finally:
            self._num_waiting -= 1

    async def _is_gone(self, response_id: str, log: EventLog) -> bool:
        """Tell whether nothing more can come: there is no log, and no request that could begin one."""
        if await log.newest() is not None:
            return False
        return not (await self._bus.fate(self._partition(response_id), response_id)).known

    def hand_over(self) -> None:
        """Let other edges go on with all that is under way here."""
        for scope in self._runs.values():
            scope.cancel()

    async def watch(self) -> None:
        """Keep the promises of this edge, and look for those that others did not keep, until cancelled."""
        while True:
            for partition, leases in enumerate(self._leases):
                try:
                    await leases.renew(name for name in self._runs if self._partition(name) == partition)
                    for response_id in await leases.run_out():
                        await self._claim(leases, response_id)
                except HeadraceError as error:
                    logger.warning("the leases of partition %d could not be read: %s", partition, error.message)
            try:
                await self._readership.look()
            except HeadraceError as error:
                logger.warning("who is read could not be noted: %s", error.message)
            await anyio.sleep(self._look_s)

    async def _claim(self, leases: Leases, response_id: str) -> None:
        if not self._edge.is_open or response_id in self._runs or not await leases.claim(response_id):
            return
        logger.warning("response %s is taken over", response_id)
        self._tasks.start_soon(self._take_over, response_id)

    async def _begin(
        self,
        request: Request,
        parent: SpanContext | None,
        images: Images | None,
        *,
        task_status: TaskStatus[ResponsesReply],
    ) -> None:
        assert request.conversation is not None
        response_id, reply = request.conversation.response_id, ResponsesReply(request)
        leases = self._leases[self._partition(response_id)]
        has_started = False
        with anyio.CancelScope() as scope:
            self._runs[response_id] = scope
            try:
                await leases.take(response_id)
                async with self._edge.generate(
                    request, reply, operation=OPERATION, stream=True, parent=parent, images=images
                ) as generation:
                    has_started = True
                    task_status.started(reply)
                    await self._make(generation, reply, 0)
            except Exception:
                if not has_started:
                    raise
                logger.exception("response %s was not finished", response_id)
            finally:
                del self._runs[response_id]
                if not has_started:  # nobody need take it over
                    with anyio.move_on_after(_DROP_S, shield=True), suppress(HeadraceError):
                        await leases.drop(response_id)
        if not has_started:
            raise UnavailableError("This server is shutting down.", retry_after_s=1)

    async def _take_over(self, response_id: str) -> None:
        partition = self._partition(response_id)
        with anyio.CancelScope() as scope:
            self._runs[response_id] = scope
            try:
                taken = await self.log(response_id).take()
                if taken is None:
                    await self._leases[partition].drop(response_id)
                    return
                number, num_tokens = taken
                try:
                    await self._go_on(partition, response_id, number, num_tokens)
                except NotFoundError:
                    await self._leases[partition].drop(response_id)
            except Exception:
                logger.exception("response %s could not be taken over", response_id)
            finally:
                del self._runs[response_id]

    async def _go_on(self, partition: int, response_id: str, number: int, num_tokens: int) -> None:
        async with self._edge.resume(partition, response_id, ResponsesReply, operation=OPERATION) as generation:
            assert isinstance(generation.reply, ResponsesReply)
            await self._catch_up(generation, num_tokens, number)
            await self._make(generation, generation.reply, number)

    async def _catch_up(self, generation: Generation, num_tokens: int, number: int) -> None:
        assert isinstance(generation.reply, ResponsesReply)
        updates = []
        try:
            updates = await generation.catch_up(num_tokens)
        except HeadraceError as error:  # it failed meanwhile, or its tokens are lost: `_make` says so
            generation.flight.fail(error)
        generation.reply.resume(updates, number, has_started=bool(num_tokens))

    async def _make(self, generation: Generation, reply: ResponsesReply, number: int) -> None:
        """Write the events of a response to its log, and store it; what cannot be written is left to a later try."""
        response_id, leases = generation.job.request_id, self._leases[generation.job.partition]
        writer = _Writer(self.log(response_id), generation, reply, number)
        generation.handed_over = True  # until it is done: whatever stops us here does not stop the response
        try:
            if number == 0:
                await writer.write(reply.opening())
            with self._readership.awaits(generation.request, generation.job, generation.flight):
                error = await _write_updates(writer, generation, reply)
            if error is None:
                bill = await generation.settle()
                await writer.write(reply.closing(bill), last=True)
            else:
                await generation.settle("cancelled" if isinstance(error, RequestCancelledError) else "failed")
                await writer.write(reply.failure(error), last=True)
            await leases.drop(response_id)
            generation.handed_over = False
        except NotTheWriterError:
            if not (await self._bus.fate(generation.job.partition, response_id)).known:
                await generation.cancel()  # it was deleted
            logger.warning("response %s is made by another edge now, or deleted", response_id)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(1.0, shield=True):
                await leases.release(response_id)
            raise

    def _partition(self, response_id: str) -> int:
        return partition_of(root_of(response_id), self._settings.partitions)


class _Writer:
    """Appends to a log; `number` is that of the next event."""

    def __init__(self, log: EventLog, generation: Generation, reply: ResponsesReply, number: int) -> None:
        self._log = log
        self._generation = generation
        self._reply = reply
        self._number = number

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Append events. Raises NotTheWriterError, or CannotWriteError when the bus is full or away."""
        number, num_tokens = self._reply.sequence_number, self._generation.num_tokens
        if number == self._number:
            return  # nothing to show came of these tokens: whoever takes over reads them again
        try:
            ours = await self._log.append(data, first=self._number, number=number, num_tokens=num_tokens, last=last)
        except HeadraceError as error:
            raise CannotWriteError from error
        if not ours:
            raise NotTheWriterError
        self._number = number


async def _write_updates(writer: _Writer, generation: Generation, reply: ResponsesReply) -> HeadraceError | None:
    """Write what is said until it ends; return the fault that ended it."""
    try:
        async for updates in generation.updates():
            await writer.write(reply.events(updates))
            await anyio.sleep(_PACE_S)
    except HeadraceError as error:
        generation.error = error
        return error
    return None
