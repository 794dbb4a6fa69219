"""Answers of the tokenizer desk outside the ring: the ids of a text or a conversation, sent to the edge that asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Protocol

import anyio

from wire.bus import Bus, Delivery
from wire.errors import HeadraceError, ModelNotFoundError, OverloadedError
from wire.messages import TokenizeCall, TokenizeReply, pack_ids
from wire.threads import in_thread

log = logging.getLogger(__name__)

_EDGE_MAXLEN = 20_000  # a full inbox: the edge is stuck, and its own deadline answers the client


class Tokenizes(Protocol):
    """Knows the ids of one model's texts."""

    def tokenize(self, call: TokenizeCall) -> list[int]:
        """Return the ids that a call asks for."""
        ...


class TokenizeDesk:
    """Works in the same threads as the desk's prompts, so that calls cannot crowd them out."""

    def __init__(self, bus: Bus, builders: Mapping[str, Tokenizes], limiter: anyio.CapacityLimiter) -> None:
        self._bus = bus
        self._builders = builders
        self._limiter = limiter

    async def on_message(self, delivery: Delivery) -> None:
        """Answer a call; one whose asker has given up is dropped."""
        call = delivery.message
        if not isinstance(call, TokenizeCall):
            log.error("the tokenizer desk does not take a %s", type(call).__name__)
        elif not call.deadline or time.time() <= call.deadline:
            try:
                await self._bus.send(call.edge, await self._reply(call), maxlen=_EDGE_MAXLEN)
            except OverloadedError:
                log.error("inbox %s is full; a reply was dropped", call.edge)
        await self._bus.finish(delivery)

    async def _reply(self, call: TokenizeCall) -> TokenizeReply:
        try:
            builder = self._builders.get(call.request.base)
            if builder is None:
                raise ModelNotFoundError(f"no model {call.request.model!r} is served here", param="model")
            ids = await in_thread(builder.tokenize, call, limiter=self._limiter)
        except HeadraceError as error:
            return TokenizeReply(call_id=call.call_id, code=error.code, message=error.message, param=error.param)
        return TokenizeReply(call_id=call.call_id, token_ids=pack_ids(ids))
