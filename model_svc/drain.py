"""The end of a replica's service: no new work, what is here gets done, the rest is left for others."""

from __future__ import annotations

import logging
from typing import Protocol

import anyio

from model_svc.heartbeat import Heartbeat

log = logging.getLogger(__name__)

_LAST_WORD_S = 1.0


class Open(Protocol):
    """A replica's requests, as far as its end needs to know them."""

    @property
    def num_open(self) -> int:
        """How many are not answered."""
        ...

    @property
    def idle(self) -> anyio.Event:
        """Set while there is none."""
        ...


async def drain(
    requests: Open, heartbeat: Heartbeat, drain_s: float, stop: anyio.Event, scope: anyio.CancelScope
) -> None:
    """When asked to stop: ask for no new work, finish what is here, leave the rest to be placed elsewhere."""
    await stop.wait()
    heartbeat.state = "draining"
    with anyio.move_on_after(_LAST_WORD_S):  # of a bus that is away; nobody can place here then
        await heartbeat.beat()  # before the end, however soon it comes: balancers must stop placing here
    with anyio.move_on_after(drain_s):
        await requests.idle.wait()
    if requests.num_open:
        log.warning("%d requests did not end in %.0f s; others take them over", requests.num_open, drain_s)
    scope.cancel()
