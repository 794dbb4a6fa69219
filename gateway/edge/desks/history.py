"""Questions to the history desk: conversations and stored responses."""

from __future__ import annotations

from typing import Any

from gateway.edge.desks.caller import Caller
from wire import topics
from wire.bus import Bus
from wire.messages import HistoryCall, HistoryReply


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
