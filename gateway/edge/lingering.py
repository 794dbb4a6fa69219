"""Requests whose clients are gone and may come back: the work goes on for a while without them.

A client may come back to any edge. When nobody holds the request after that time, the edge that was left ends it.
"""

from __future__ import annotations

import logging

import anyio
from anyio.abc import TaskGroup

from gateway.edge.endings import Endings
from gateway.edge.generation import Generation
from wire.bus import Bus
from wire.errors import HeadraceError
from wire.messages import Holder, Job

logger = logging.getLogger(__name__)

OPERATION = "chat"
_AGAIN_S = 1.0


class Lingering:
    """The requests that clients have left at this edge, each for `wait_s` at most."""

    def __init__(self, bus: Bus, inbox: str, endings: Endings, tasks: TaskGroup, *, wait_s: float) -> None:
        self._bus = bus
        self._inbox = inbox
        self._endings = endings
        self._tasks = tasks
        self._wait_s = wait_s
        self._left: dict[str, Generation] = {}

    def leave(self, generation: Generation) -> None:
        """Wait for a client to come back; one that lost nothing, or to another connection, is not waited for."""
        if generation.error is None and not generation.settled and not generation.flight.taken_over:
            generation.handed_over = True
            self._left[generation.job.request_id] = generation
            self._tasks.start_soon(self._wait, generation)

    def come_back(self, request_id: str) -> None:
        """Take note that another answer goes on with a request here."""
        self._left.pop(request_id, None)

    async def _wait(self, generation: Generation) -> None:
        job = generation.job
        await anyio.sleep(self._wait_s)
        is_ours = self._is_left(generation) and await self._is_held_here(job)
        if not self._is_left(generation):
            return  # it came back here, perhaps while the record was read
        del self._left[job.request_id]
        if is_ours:
            generation.handed_over = False
            self._endings.begin(generation, OPERATION)

    def _is_left(self, generation: Generation) -> bool:
        return self._left.get(generation.job.request_id) is generation

    async def _is_held_here(self, job: Job) -> bool:
        """Tell whether no other edge has taken a request over. A bus that is away is asked again: nobody else knows."""
        while True:
            try:
                record = await self._bus.record(job.partition, job.request_id, "holder")
            except HeadraceError as error:
                logger.warning("request %s: who holds it is not known: %s", job.request_id, error.message)
                await anyio.sleep(_AGAIN_S)
                continue
            holder: Holder | None = record.get("holder")
            return holder is not None and holder.edge == self._inbox
