"""Questions to the tokenizer desk: what a text or a conversation is in token ids."""

from __future__ import annotations

import secrets

from gateway.edge.desks.caller import Caller
from gateway.edge.served import Served
from wire import topics
from wire.bus import Bus
from wire.messages import Recalled, Request, TokenizeCall, TokenizeReply, unpack_ids


class TokenizerClient(Caller):
    """Sends a TokenizeCall to the desk of the request's model, on any partition."""

    def __init__(self, bus: Bus, served: Served, edge: str, timeout_s: float, partitions: int) -> None:
        super().__init__(bus, edge, timeout_s, desk="tokenizer")
        self._served = served
        self._partitions = partitions

    async def token_ids(
        self,
        request: Request,
        *,
        add_special_tokens: bool = True,
        add_generation_prompt: bool = True,
        recalled: Recalled | None = None,
    ) -> list[int]:
        """Return the ids of a request's prompt, behind what was said before. Raises the desk's error, or is late."""
        request = self._served.routed(request)
        call_id, deadline = self.new_call()
        call = TokenizeCall(
            call_id=call_id,
            edge=self.edge,
            request=request,
            add_special_tokens=add_special_tokens,
            add_generation_prompt=add_generation_prompt,
            deadline=deadline,
            recalled=recalled,
        )
        reply = await self.ask(topics.tokenizer(secrets.randbelow(self._partitions), request.base), call)
        assert isinstance(reply, TokenizeReply)
        return unpack_ids(reply.token_ids)
