"""Questions to a desk outside a request, and the answers that come back through the edge's inbox."""

from __future__ import annotations

import secrets
import time

import anyio

from gateway.edge.errors import from_reply
from wire.bus import Bus
from wire.errors import DeadlineExceededError, UnavailableError
from wire.messages import HistoryCall, HistoryReply, TokenizeCall, TokenizeReply

_MAXLEN = 10_000  # of a desk's stream; when it is full the caller gets 429

Call = HistoryCall | TokenizeCall
Reply = HistoryReply | TokenizeReply


class Caller:
    """Sends calls of one kind and waits for each reply, at most `timeout_s`. `desk` is its name in messages."""

    def __init__(self, bus: Bus, edge: str, timeout_s: float, *, desk: str) -> None:
        self.edge = edge
        self._bus = bus
        self._timeout_s = timeout_s
        self._desk = desk
        self._waiting: dict[str, tuple[anyio.Event, list[Reply]]] = {}
        self._closed = False

    def new_call(self) -> tuple[str, float]:
        """Return an id and a deadline for a call."""
        return secrets.token_hex(12), time.time() + self._timeout_s

    async def ask(self, stream: str, call: Call) -> Reply:
        """Send a call and return its reply. Raises the desk's error, DeadlineExceededError, or UnavailableError."""
        came, box = self._waiting.setdefault(call.call_id, (anyio.Event(), []))
        try:
            with anyio.move_on_after(self._timeout_s):
                if not self._closed:
                    await self._bus.send(stream, call, maxlen=_MAXLEN)
                    await came.wait()
        finally:
            del self._waiting[call.call_id]
        if not box and self._closed:
            raise UnavailableError("The edge is stopping.", retry_after_s=1.0)
        if not box:
            raise DeadlineExceededError(f"The {self._desk} desk did not answer in time.")
        if box[0].code is not None:
            raise from_reply(box[0])
        return box[0]

    def close(self) -> None:
        """Give up what is waited for: the edge goes, and the desk may have gone before it."""
        self._closed = True
        for came, _ in self._waiting.values():
            came.set()

    def deliver(self, reply: Reply) -> None:
        """Hand a reply to its caller; one that nobody waits for any more is dropped."""
        if reply.call_id in self._waiting:
            came, box = self._waiting[reply.call_id]
            box.append(reply)
            came.set()
