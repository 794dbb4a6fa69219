"""Calls that the tokenizer desk answers outside the ring."""

from __future__ import annotations

import gc
import weakref

import anyio
import pytest

from tokenizer_svc.calls import TokenizeDesk
from wire import topics
from wire.bus import Bus
from wire.errors import ContextLengthExceededError
from wire.messages import Request, TokenizeCall, TokenizeReply

pytestmark = pytest.mark.anyio

EDGE, TOKENIZER = topics.edge("e"), topics.tokenizer(0, "m")


class Refuses:
    """Knows a text while it refuses it."""

    def __init__(self) -> None:
        self.texts: list[weakref.ref[set[str]]] = []

    def tokenize(self, call: TokenizeCall) -> list[int]:
        text = {call.request.prompt_text}
        self.texts.append(weakref.ref(text))
        raise ContextLengthExceededError("too long", param="prompt")


async def test_a_text_that_is_refused_does_not_wait_for_the_garbage_collector(bus: Bus) -> None:
    builder = Refuses()
    desk = TokenizeDesk(bus, {"m": builder}, anyio.CapacityLimiter(1))
    call = TokenizeCall(call_id="c", edge=EDGE, request=Request(model="m", kind="text", prompt_text="long"))
    await bus.send(TOKENIZER, call, maxlen=9)
    [delivery] = await bus.consumer(TOKENIZER, group="g", name="one").read(1)
    gc.disable()
    try:
        await desk.on_message(delivery)
        assert [text() for text in builder.texts] == [None]
    finally:
        gc.enable()
    async for reply in bus.inbox(EDGE):
        assert isinstance(reply, TokenizeReply)
        assert (reply.code, reply.param) == ("context_length_exceeded", "prompt")
        break
