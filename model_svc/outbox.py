"""Sends tokens to the edges: one batch per edge and step, or, with the bus slow or an edge full, all that came since.

A batch goes out at once, without a task of its own and without waiting for the reply to the last one. What may not go
so (an edge that is full, a bus that is away or far behind, a record to be written first) is sent by the one task that
waits. What waits is bounded by what the open requests can generate; it lies in their token logs, nothing is copied.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from functools import partial

import anyio

from model_svc.engine.kv_events import KvEvent
from model_svc.open_requests import OpenRequest, OpenRequests
from wire import topics
from wire.bus import Bus
from wire.errors import HeadraceError
from wire.messages import AnyMessage, BlocksEvicted, BlocksStored, Closed, TokenBatch, TokenChunk

log = logging.getLogger(__name__)

EDGE_MAXLEN = 10_000  # batches that an edge has not read; full: they are sent later, joined
KV_EVENTS_MAXLEN = 10_000  # the oldest is dropped; readers see the gap by the numbers and ask for a report
_PAUSE_S = 0.1

Taken = list[tuple[OpenRequest, list[TokenChunk]]]


class Outbox:
    """The one sender of token batches and KV events, so that each stream keeps its order."""

    def __init__(self, bus: Bus, requests: OpenRequests, *, replica_id: str, model: str) -> None:
        self._bus = bus
        self._requests = requests
        self._replica_id = replica_id
        self._kv_stream = topics.kv_events(model)
        self._courier = bus.courier()
        self._dirty: dict[str, OpenRequest] = {}
        self._events: list[KvEvent] = []
        self._step = 0
        self._wake = anyio.Event()
        self._resting: dict[str, float] = {}  # edges that were full, and until when they are left alone
        self._sending: set[str] = set()  # edges that the task sends to just now: `flush` shall not overtake it
        self._under_way: Counter[str] = Counter()  # batches to each edge that are neither arrived nor lost

    def put(self, step: int, request: OpenRequest) -> None:
        """Note that a request has tokens to send."""
        self._step = step
        self._dirty[request.job.request_id] = request

    def put_events(self, events: tuple[KvEvent, ...]) -> None:
        """Queue KV events."""
        self._events += events

    def flush(self) -> None:
        """Send what can go at once; the task sees to the rest."""
        ready: dict[str, Taken | None] = {}  # None: an edge that nothing may go to
        for key, request in list(self._dirty.items()):
            edge = request.edge
            if edge not in ready:
                ready[edge] = [] if self._is_free(edge) else None
            taken = ready[edge]
            if taken is None or request.closed_anew:
                continue
            del self._dirty[key]
            if chunks := _unsent(request):
                taken.append((request, chunks))
        for edge, taken in ready.items():
            if not taken:
                continue
            self._under_way[edge] += 1
            tell = partial(self._told, edge, taken)
            # Nobody waits to hear of tokens in the middle of answers; of ends, and where the task waits for its turn.
            patient = not self._dirty and not _has_ends(taken)
            self._courier.post(edge, self._batch(taken), maxlen=EDGE_MAXLEN, tell=tell, patient=patient)
        if self._dirty or self._events:
            self._wake.set()

    def _is_free(self, edge: str) -> bool:
        """Tell whether a batch may go to an edge at once."""
        return edge not in self._resting and edge not in self._sending and self._courier.may_post(edge)

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            while True:
                with anyio.move_on_after(_PAUSE_S if self._dirty else None):
                    await self._wake.wait()
                self._wake = anyio.Event()
                await self._send_tokens()
                await self._send_events()
        finally:
            self._courier.close()

    async def _send_tokens(self) -> None:
        now = anyio.current_time()
        taken: dict[str, Taken] = {}
        for key, request in list(self._dirty.items()):
            edge = request.edge
            # Behind what is under way: an edge that sees a gap asks for it.
            waits = self._under_way[edge] > 0 or self._resting.get(edge, now) > now
            if waits and request.error is None:
                self._courier.ask(edge)
                continue
            del self._dirty[key]
            if chunks := _unsent(request):
                taken.setdefault(edge, []).append((request, chunks))
        if not taken:
            return
        self._sending = set(taken)
        await self._note_closings(request for requests in taken.values() for request, _ in requests)
        refused = await self._send_batches([(edge, self._batch(requests)) for edge, requests in taken.items()])
        for edge, requests in taken.items():
            if edge in refused:
                self._keep(edge, requests)
            else:
                self._resting.pop(edge, None)
                _settle(requests)
                await self._courier.prepare(edge)
        self._sending.clear()
        self.flush()

    def _told(self, edge: str, taken: Taken, arrived: bool) -> None:
        """Hear what became of a batch."""
        self._under_way[edge] -= 1
        if not self._under_way[edge]:
            del self._under_way[edge]
        if arrived:
            _settle(taken)
        else:
            self._keep(edge, taken)
        self.flush()

    def _keep(self, edge: str, taken: Taken) -> None:
        """Count tokens as not sent; they are sent again after a pause."""
        if edge not in self._resting:
            log.warning("%s does not take tokens; they are sent again later", edge)
        for request, chunks in taken:
            for chunk in chunks:
                request.logs[chunk.choice].take_back(chunk.index)
            self._dirty.setdefault(request.job.request_id, request)  # a later attempt may have taken its place
        self._resting[edge] = anyio.current_time() + _PAUSE_S

    def _batch(self, taken: Taken) -> TokenBatch:
        chunks = tuple(chunk for _, chunks in taken for chunk in chunks)
        return TokenBatch(replica_id=self._replica_id, step=self._step, chunks=chunks)

    async def _send_batches(self, batches: list[tuple[str, TokenBatch]]) -> list[str]:
        """Send; returns the edges that did not take theirs: full, or the bus is away."""
        messages: list[tuple[str, AnyMessage]] = [*batches]
        try:
            return await self._bus.send_many(messages, maxlen=EDGE_MAXLEN)
        except HeadraceError as error:
            log.warning("tokens could not be sent: %r", error)
            return [edge for edge, _ in batches]

    async def _note_closings(self, requests: Iterable[OpenRequest]) -> None:
        """Write down where a client ended thinking before anybody sees what came of it: other attempts follow."""
        for request in requests:
            if not request.closed_anew:
                continue
            job = request.job
            try:
                await self._bus.update_record(job.partition, job.request_id, {"closed": Closed(at=request.closed_at)})
                request.closed_anew = False
            except HeadraceError as error:  # tried again with the next tokens
                log.warning("request %s: where thinking was ended is not noted: %r", job.request_id, error)

    async def _send_events(self) -> None:
        events, self._events = self._events, []
        for event in events:
            message: BlocksStored | BlocksEvicted
            if event.stored:
                message = BlocksStored(
                    replica_id=self._replica_id, sequence=event.sequence, hashes=event.hashes, reset=event.reset
                )
            else:
                message = BlocksEvicted(replica_id=self._replica_id, sequence=event.sequence, hashes=event.hashes)
            try:
                await self._bus.publish(self._kv_stream, message, maxlen=KV_EVENTS_MAXLEN)
            except HeadraceError as error:  # readers see the gap by the number
                log.warning("KV events could not be published: %r", error)


def _unsent(request: OpenRequest) -> list[TokenChunk]:
    """Take what was not sent; nothing of what failed: its edge has heard, nobody waits for tokens any more."""
    return [] if request.error is not None else [log.take() for log in request.logs.values() if log.has_unsent]


def _has_ends(taken: Taken) -> bool:
    """Tell whether a choice ends with what is sent."""
    return any(chunk.finish_reason is not None for _, chunks in taken for chunk in chunks)


def _settle(taken: Taken) -> None:
    """Note which requests are wholly with their edges; what is sent again tells their ends again."""
    if not _has_ends(taken):
        return
    for request, _ in taken:
        if request.finished and not any(log.has_unsent for log in request.logs.values()):
            request.settled.set()
