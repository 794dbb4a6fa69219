"""Asks edges which tokens of a request they have, when its replica is lost.

An edge that does not answer within a moment is taken for dead; then the job record's checkpoint has to serve.
"""

from __future__ import annotations

import os

import anyio

from wire import topics
from wire.bus import Bus
from wire.errors import HeadraceError
from wire.messages import Checkpoint, ReportTokens, TokenReport

_SILENT_S = 10.0  # so long an edge that did not answer is not asked again: it may have had a thousand requests
_MAXLEN = 10_000


class TokenReports:
    """Questions of this balancer to edges, and their answers.

    An edge answers within milliseconds, or never: after `answer_s` it counts as stopped or dead.
    """

    def __init__(self, bus: Bus, *, answer_s: float) -> None:
        self._bus = bus
        self._answer_s = answer_s
        self._inbox = topics.balancer_inbox(os.urandom(6).hex())
        self._silent: dict[str, float] = {}  # edges, and until when they are not asked
        self._waiting: dict[str, tuple[anyio.Event, list[TokenReport]]] = {}

    async def run(self) -> None:
        """Read answers, until cancelled."""
        async for message in self._bus.inbox(self._inbox):
            if isinstance(message, TokenReport) and message.request_id in self._waiting:
                event, found = self._waiting[message.request_id]
                found.append(message)
                event.set()

    async def ask(self, edge: str, request_id: str) -> Checkpoint | None:
        """Return the tokens that an edge has of a request; None if it knows nothing of it or does not answer."""
        now = anyio.current_time()
        if self._silent.get(edge, now) > now:
            return None
        answered: tuple[anyio.Event, list[TokenReport]] = (anyio.Event(), [])
        self._waiting[request_id] = answered
        try:
            with anyio.move_on_after(self._answer_s):
                await self._bus.send(edge, ReportTokens(request_id=request_id, reply_to=self._inbox), maxlen=_MAXLEN)
                await answered[0].wait()
        except HeadraceError:
            return None
        finally:
            del self._waiting[request_id]
        if not answered[1]:
            now = anyio.current_time()
            self._silent = {name: until for name, until in self._silent.items() if until > now}  # edges come and go
            self._silent[edge] = now + _SILENT_S
            return None
        self._silent.pop(edge, None)
        return answered[1][0].checkpoint
