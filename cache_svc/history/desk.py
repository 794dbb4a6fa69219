"""What the history desk does with each kind of message: recall for a job, store a turn, answer a call."""

from __future__ import annotations

import logging
import time
from typing import Any

import anyio
import msgspec

from cache_svc.history.calls import Calls
from cache_svc.history.catalog import Catalog
from cache_svc.history.pictures import recalled_pictures
from cache_svc.history.rewrite import Rewriter
from cache_svc.history.settings import HistorySettings
from cache_svc.history.store import Pending, Store, Stored, continued, find, now_ms
from cache_svc.history.waiting import Patience, let_turns_before_pass
from wire import topics
from wire.bus import Bus, Delivery
from wire.errors import HeadraceError, InternalError, InvalidRequestError, OverloadedError
from wire.messages import ConversationRef, HistoryCall, HistoryReply, Images, Job, Recalled, Request, Turn
from wire.step import Step

log = logging.getLogger(__name__)

_EDGE_MAXLEN = 20_000  # a full inbox: the edge is stuck, and its own deadline answers the client


class HistoryDesk:
    """Keeps the conversations of all tenants."""

    def __init__(self, bus: Bus, settings: HistorySettings) -> None:
        ttl_s = settings.history_ttl_days * 86_400
        self._bus = bus
        self._wait_s = settings.history_turn_wait_s
        self._most_image_bytes = settings.history_image_bytes
        # Jobs that wait for a turn must leave room for the very turn they wait for.
        self._waiting = anyio.Semaphore(settings.history_concurrency // 2)
        self._store = Store(bus.route, ttl_s=ttl_s)
        self._catalog = Catalog(bus.route, ttl_ms=self._store.ttl_ms)
        self.rewriter = Rewriter(bus.route, settings.history_rewrite_s)
        self._calls = Calls(bus.route, self._store, self._catalog, self.rewriter)

    async def handle(self, job: Job, record: dict[str, Any]) -> Step:
        """Recall the conversation that a job continues; mark the turn that it will bring."""
        request: Request | None = record.get("request")
        if request is None:
            raise InternalError("The job came to the history desk without a request.")
        onward = topics.tokenizer(job.partition, job.model)
        ref = request.conversation
        if ref is None:
            return Step(to=onward)
        if ref.store:
            await self._store.admit(job, request.tenant, ref, request.model)
        if ref.conversation_id is None and ref.previous_response_id is None:
            return Step(to=onward)
        recalled = await self._recall(request.tenant, ref, request.model)
        fields: dict[str, msgspec.Struct] = {"recalled": recalled}
        before, param = continued(ref)
        images = await recalled_pictures(
            self._bus.route, find(before, param), recalled.messages, most_bytes=self._most_image_bytes, param=param
        )
        if images is not None:
            fields["recalled_images"] = images
        return Step(to=onward, fields=fields)

    async def _recall(self, tenant: str, ref: ConversationRef, model: str) -> Recalled:
        found = await self._store.recall(tenant, ref, model, wait=True)
        if isinstance(found, Recalled):
            return found
        try:
            self._waiting.acquire_nowait()
        except anyio.WouldBlock:
            raise OverloadedError("Too many requests wait for the turns before them.", retry_after_s=1.0) from None
        try:
            patience = Patience(self._bus.route, self._wait_s)
            while isinstance(found, Pending):
                await patience.wait(found.requests)
                found = await self._store.recall(tenant, ref, model, wait=patience.left)
        finally:
            self._waiting.release()
        return found

    async def on_message(self, delivery: Delivery) -> None:
        """Take a turn or a call."""
        message = delivery.message
        if isinstance(message, Turn):
            await self.take_turn(message)
        elif isinstance(message, HistoryCall):
            partition = topics.partition_of(delivery.stream)
            assert partition is not None
            await let_turns_before_pass(self._bus.route, delivery, self._wait_s)
            await self.answer(message, partition)
        else:
            log.error("the history desk does not take a %s", type(message).__name__)
        await self._bus.finish(delivery)

    async def take_turn(self, turn: Turn) -> None:
        """Store a turn and bring its conversation to the top of the tenant's list."""
        try:
            outcome = await self._store.store(turn, await self._pictures_of(turn))
            if outcome is Stored.GONE:
                log.info("turn %s is dropped: what it belongs to was deleted", turn.response_id)
            elif turn.conversation.conversation_id is not None:
                await self._catalog.touch(turn.tenant, turn.partition, turn.conversation.conversation_id, now_ms())
        except InvalidRequestError as error:
            log.error("turn %s cannot be stored: %s", turn.response_id, error.message)
        except HeadraceError as error:  # the bus is full or away: a fault of ours, so the turn is tried again
            raise RuntimeError(f"turn {turn.response_id} could not be stored") from error

    async def _pictures_of(self, turn: Turn) -> Images | None:
        """Return what was sent along with a turn: its request's record has it."""
        if not any(message.images for message in turn.input):
            return None
        record = await self._bus.record(turn.partition, turn.request_id, "images")
        if "images" not in record:
            log.error("turn %s is stored without its pictures: the request's record is gone", turn.response_id)
        return record.get("images")

    async def answer(self, call: HistoryCall, partition: int) -> None:
        """Answer a call at the inbox of its edge."""
        if call.deadline and time.time() > call.deadline:
            return
        try:
            reply = HistoryReply(call_id=call.call_id, result=await self._calls.answer(call, partition))
        except HeadraceError as error:
            reply = HistoryReply(call_id=call.call_id, code=error.code, message=error.message, param=error.param)
        try:
            await self._bus.send(call.edge, reply, maxlen=_EDGE_MAXLEN)
        except OverloadedError:
            log.error("inbox %s is full; a reply was dropped", call.edge)
