"""What others tell a replica on its control stream: end this, stop thinking, say that again, tell all you hold."""

from __future__ import annotations

import logging

from model_svc.engine_link import EngineLink
from model_svc.engine_messages import CancelSequences, CloseThinking, ReportNames
from model_svc.open_requests import OpenRequests
from model_svc.outbox import EDGE_MAXLEN, Outbox
from wire import topics
from wire.bus import Bus
from wire.errors import HeadraceError, UnavailableError
from wire.messages import Cancel, EndReasoning, Failure, ReportBlocks, Resubscribe

log = logging.getLogger(__name__)


class Commands:
    """Obeys them: by the engine, or by what is kept of the requests."""

    def __init__(self, bus: Bus, link: EngineLink, requests: OpenRequests, outbox: Outbox, replica_id: str) -> None:
        self._bus = bus
        self._link = link
        self._requests = requests
        self._outbox = outbox
        self._replica_id = replica_id

    async def follow(self) -> None:
        """Follow the control stream until cancelled."""
        async for message in self._bus.inbox(topics.control(self._replica_id)):
            match message:
                case Cancel():
                    await self._cancel(message)
                case EndReasoning():
                    await self._end_thinking(message.request_id)
                case Resubscribe():
                    await self._resubscribe(message)
                case ReportBlocks():
                    await self._link.send(ReportNames())
                case _:
                    log.warning("a %s on the control stream", type(message).__name__)

    async def _cancel(self, cancel: Cancel) -> None:
        # Whatever the attempt: the client's wish holds for all of them, and an edge may not know the newest yet.
        request = self._requests.get(cancel.request_id)
        if request is None or request.ended.is_set():
            return
        if not request.submitted:
            request.cancelled = request.cancelled or cancel.choice is None
        await self._link.send(CancelSequences(request_id=cancel.request_id, choice=cancel.choice))

    async def _end_thinking(self, request_id: str) -> None:
        request = self._requests.get(request_id)
        if request is None:
            self._requests.end_thinking_of(request_id)
        elif not request.submitted or request.is_prefill:
            request.ends_thinking = True
        else:
            await self._link.send(CloseThinking(request_id=request_id))

    async def _resubscribe(self, message: Resubscribe) -> None:
        request = self._requests.get(message.request_id)
        if request is None:
            log.info("nothing is kept of request %s", message.request_id)
            await self._tell_unknown(message)
            return
        request.edge = message.edge
        choice = request.logs.get(message.choice)
        if choice is not None:
            choice.rewind(message.from_index)
            self._outbox.put(0, request)
            self._outbox.flush()

    async def _tell_unknown(self, message: Resubscribe) -> None:
        """End a request whose tokens nobody has any more: its client would wait for them until its deadline."""
        if message.attempt < 0:
            return
        failure = Failure(
            request_id=message.request_id,
            attempt=message.attempt,
            code=UnavailableError.code,
            message="The tokens of this request are not kept any more.",
            desk="model",
        )
        try:
            await self._bus.send(message.edge, failure, maxlen=EDGE_MAXLEN)
        except HeadraceError as error:  # it asks again
            log.warning("%s was not told: %r", message.edge, error)
