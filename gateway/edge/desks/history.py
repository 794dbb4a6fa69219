"""Questions to the history desk: conversations and stored responses."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.edge.desks.caller import Caller
from wire import codec, topics
from wire.bus import Bus
from wire.messages import ChatMessage, HistoryCall, HistoryReply, Images


def plain(messages: tuple[ChatMessage, ...]) -> Any:
    """Return messages as a call's arguments take them."""
    return msgspec.to_builtins(messages, builtin_types=(bytes,))


def packed(images: Images | None) -> bytes:
    """Return pictures as a call's arguments take them, b"" for none."""
    return codec.encode(images) if images is not None else b""


class HistoryClient(Caller):
    """Sends a HistoryCall to the partition that holds the object."""

    def __init__(self, bus: Bus, edge: str, timeout_s: float) -> None:
        super().__init__(bus, edge, timeout_s, desk="history")

    async def call(self, partition: int, op: str, tenant: str = "", **args: Any) -> Any:
        """Ask and return the result. Raises the desk's error, or DeadlineExceededError."""
        call_id, deadline = self.new_call()
        call = HistoryCall(call_id=call_id, edge=self.edge, op=op, tenant=tenant, args=args, deadline=deadline)
        reply = await self.ask(topics.history(partition), call)
        assert isinstance(reply, HistoryReply)
        return reply.result
