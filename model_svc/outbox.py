"""Sends tokens to the edges: one batch per edge and step, or, with the bus slow or an edge full, all that came since.

What waits here is bounded by what the open requests can generate; it lies in their token logs, nothing is copied.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

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


class Outbox:
    """The one sender of token batches and KV events, so that each stream keeps its order."""

    def __init__(self, bus: Bus, requests: OpenRequests, *, replica_id: str, model: str) -> None:
        self._bus = bus
        self._requests = requests
        self._replica_id = replica_id
        self._kv_stream = topics.kv_events(model)
        self._dirty: dict[str, OpenRequest] = {}
        self._events: list[KvEvent] = []
        self._step = 0
        self._wake = anyio.Event()
        self._resting: dict[str, float] = {}  # edges that were full, and until when they are left alone

    def put(self, step: int, request: OpenRequest) -> None:
        """Note that a request has tokens to send."""
        self._step = step
        self._dirty[request.job.request_id] = request
        self._wake.set()

    def put_events(self, events: tuple[KvEvent, ...]) -> None:
        """Queue KV events."""
        self._events += events
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            with anyio.move_on_after(_PAUSE_S if self._dirty else None):
                await self._wake.wait()
            self._wake = anyio.Event()
            await self._send_tokens()
            await self._send_events()

    async def _send_tokens(self) -> None:
        now = anyio.current_time()
        resting = {
            key: request
            for key, request in self._dirty.items()
            if self._resting.get(request.edge, now) > now and request.error is None
        }
        dirty, self._dirty = self._dirty, resting
        taken: dict[str, list[tuple[OpenRequest, list[TokenChunk]]]] = {}
        for key, request in dirty.items():
            if key in resting or request.error is not None:
                continue  # of what failed its edge has heard: nobody waits for tokens any more
            chunks = [item.take() for item in request.logs.values() if item.has_unsent]
            if chunks:
                taken.setdefault(request.edge, []).append((request, chunks))
        if not taken:
            return
        await self._note_closings(dirty.values())
        batches = [
            (edge, TokenBatch(replica_id=self._replica_id, step=self._step, chunks=_all_chunks(requests)))
            for edge, requests in taken.items()
        ]
        for edge in await self._send_batches(batches):
            if edge not in self._resting:
                log.warning("%s does not take tokens; they are sent again later", edge)
            for request, chunks in taken.pop(edge):
                for chunk in chunks:
                    request.logs[chunk.choice].take_back(chunk.index)
                self._dirty[request.job.request_id] = request
            self._resting[edge] = now + _PAUSE_S
        for edge, requests in taken.items():
            self._resting.pop(edge, None)
            for request, _ in requests:
                if request.finished and not any(item.has_unsent for item in request.logs.values()):
                    request.settled.set()

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


def _all_chunks(requests: list[tuple[OpenRequest, list[TokenChunk]]]) -> tuple[TokenChunk, ...]:
    return tuple(chunk for _, chunks in requests for chunk in chunks)
