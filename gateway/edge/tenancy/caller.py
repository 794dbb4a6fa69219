"""The caller of the request in hand: its key, and what the limits said. Set by the gate, read where work is admitted.

It travels as a context variable, as the trace does: every dialect's route would otherwise pass it on untouched.
"""

from __future__ import annotations

from contextvars import ContextVar

import msgspec

from gateway.edge.tenancy.key_file import ApiKey
from gateway.edge.tenancy.limits import Limits, Standing, Why, tokens_wanted
from wire.errors import ForbiddenError, RateLimitError
from wire.messages import Request

current: ContextVar[Caller | None] = ContextVar("caller", default=None)


class Caller:
    """One HTTP request's caller."""

    def __init__(self, key: ApiKey, limits: Limits) -> None:
        self.key = key
        self.standing: Standing | None = None
        self._limits = limits

    def stamp(self, request: Request) -> Request:
        """Return the request with whose it is. A caller may put its own request back, never before others'."""
        key = self.key
        priority = max(request.priority, key.priority)
        return msgspec.structs.replace(request, tenant=key.tenant, key_id=key.id, priority=priority)

    async def enter(self, request_id: str, request: Request, *, lease_s: float) -> None:
        """Ask the limits. Raises ForbiddenError for a model the key is not for, RateLimitError when it must wait."""
        key = self.key
        if key.models and request.model not in key.models:
            raise ForbiddenError(f"This key may not use the model {request.model[:80]!r}.", param="model")
        if not (key.requests_per_minute or key.tokens_per_minute or key.max_concurrent):
            return
        self.standing = await self._limits.enter(key, request_id, tokens_wanted(request), lease_s=lease_s)
        if self.standing.why is not Why.ALLOWED:
            raise _refusal(key, self.standing)


def _refusal(key: ApiKey, standing: Standing) -> RateLimitError:
    said = {
        Why.REQUESTS: f"{key.requests_per_minute} requests a minute",
        Why.TOKENS: f"{key.tokens_per_minute} tokens a minute",
        Why.CONCURRENT: f"{key.max_concurrent} requests at a time",
    }[standing.why]
    wait_s = max(standing.retry_s, 0.001)
    return RateLimitError(f"This key may use {said}. Try again in {wait_s:.1f} s.", retry_after_s=wait_s)
