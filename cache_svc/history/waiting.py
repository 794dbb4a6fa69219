"""How long a request or a call waits for the turn before it: that one was admitted, but is not stored yet.

Most often it is a matter of milliseconds (the client had the whole answer; its turn is on the way). Of a request that
was cancelled the record says whether its turn follows. If it failed, its turn either comes at once or never.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import anyio
from redis.exceptions import ResponseError

from cache_svc.history.scripts.before import TURNS_BEFORE
from wire import topics
from wire.bus import Delivery
from wire.bus.records import TURN_FOLLOWS
from wire.bus.route import Route
from wire.messages import Turn

_FIRST_DELAY_S = 0.005
_LAST_DELAY_S = 0.08
_FAILED_PATIENCE_S = 0.3
_LOOK_S = 0.002
_STORING_MS = 1000.0  # storing takes a few; whoever has a turn for so long is dead, or tries it again
_TURN = f"type{chr(0xA0 + len(Turn.__name__))}{Turn.__name__}".encode("latin-1")  # how one begins, behind its length


class Patience:
    """One request's waiting, at most `limit_s` in all."""

    def __init__(self, route: Route, limit_s: float) -> None:
        self._route = route
        self._until = anyio.current_time() + limit_s
        self._delay_s = _FIRST_DELAY_S
        self._hope = True

    @property
    def left(self) -> bool:
        """Whether it makes sense to wait on."""
        return anyio.current_time() < self._until

    async def wait(self, requests: Sequence[str]) -> None:
        """Wait a little for the turns of these requests; longer each time."""
        if self._hope:
            patience_s = max([await patience_of(self._route, request) for request in requests], default=0.0)
            self._hope = patience_s == math.inf
            self._until = min(self._until, anyio.current_time() + patience_s)
        await anyio.sleep(min(self._delay_s, max(self._until - anyio.current_time(), 0.0)))
        self._delay_s = min(2 * self._delay_s, _LAST_DELAY_S)


async def patience_of(route: Route, request: str) -> float:
    """Return how long a request's ("partition/id") turn may be waited for: for ever, if it is sure to come."""
    partition, _, request_id = request.partition("/")
    key = topics.job_record(int(partition), request_id)
    admitted, cancelled, ended = await route.call(key, "HMGET", key, "admitted", "cancelled", "ended")
    if admitted is None or cancelled not in (None, TURN_FOLLOWS):
        return 0.0
    return _FAILED_PATIENCE_S if ended and cancelled is None else math.inf


async def let_turns_before_pass(route: Route, call: Delivery, limit_s: float) -> None:
    """Wait for the turns that came before a call, at whichever desk: who asks after an answer sees its turn."""
    with anyio.move_on_after(limit_s):
        while await _num_turns_before(route, call):  # noqa: ASYNC110 - they may be another process's
            await anyio.sleep(_LOOK_S)


async def _num_turns_before(route: Route, call: Delivery) -> int:
    try:
        arguments = (call.group, call.entry_id, _STORING_MS, _TURN)
        found: int = await route.run(TURNS_BEFORE, (call.stream,), *arguments)
    except ResponseError:  # somebody has deleted the group
        return 0
    return found
