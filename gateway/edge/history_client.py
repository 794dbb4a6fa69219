"""Questions to the history desk outside a chat request, and the answers that come back through the edge's inbox."""

from __future__ import annotations

import secrets
import time
from typing import Any

import anyio

from gateway.edge.errors import from_reply
from wire import topics
from wire.bus import Bus
from wire.errors import DeadlineExceededError
from wire.messages import HistoryCall, HistoryReply

_MAXLEN = 10_000  # of a history stream; when it is full the caller gets 429


class HistoryClient:
    """Sends a HistoryCall to the partition that holds the object and waits for the reply, at most `timeout_s`."""

    def __init__(self, bus: Bus, edge: str, timeout_s: float) -> None:
        self._bus = bus
        self._edge = edge
        self._timeout_s = timeout_s
        self._waiting: dict[str, tuple[anyio.Event, list[HistoryReply]]] = {}

    async def call(self, partition: int, op: str, tenant: str = "", **args: Any) -> Any:
        """Ask and return the result. Raises the desk's error, or DeadlineExceededError."""
        call_id = secrets.token_hex(12)
        came, box = self._waiting.setdefault(call_id, (anyio.Event(), []))
        call = HistoryCall(
            call_id=call_id,
            edge=self._edge,
            op=op,
            tenant=tenant,
            args=args,
            deadline=time.time() + self._timeout_s,
        )
        try:
            with anyio.move_on_after(self._timeout_s):
                await self._bus.send(topics.history(partition), call, maxlen=_MAXLEN)
                await came.wait()
        finally:
            del self._waiting[call_id]
        if not box:
            raise DeadlineExceededError("The history desk did not answer in time.")
        if box[0].code is not None:
            raise from_reply(box[0])
        return box[0].result

    def deliver(self, reply: HistoryReply) -> None:
        """Hand a reply to its caller; one that nobody waits for any more is dropped."""
        if reply.call_id in self._waiting:
            came, box = self._waiting[reply.call_id]
            box.append(reply)
            came.set()
