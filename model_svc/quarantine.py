"""Whom the engine gets when: requests that were on replicas when they died are tried apart from others.

A request that kills whatever runs it takes along all that the engine had been given beside it, and nobody can say which
of them it was. So a suspect waits until all before it have said something; then its record says that it is on trial,
and whoever comes later waits until it has said something itself, or has ended. If the replica dies meanwhile, it was
this one. What only waited has lost nothing, and suspects that are innocent go on as usual.
"""

from __future__ import annotations

from collections.abc import Hashable

import anyio

from model_svc.persist import until_done
from wire import metrics
from wire.bus import Bus
from wire.messages import Job, Placement, Trial


class Quarantine:
    """The way into the engine of one replica."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._unproven: set[Hashable] = set()  # inside, and has said nothing yet
        self._on_trial: Hashable = None
        self._num_suspects = 0  # that wait
        self._changed = anyio.Event()

    async def admit(self, request: Hashable, job: Job, placement: Placement | None) -> None:
        """Wait until a request may be given to the engine. Whatever comes of it, `prove` must follow."""
        if placement is None or not placement.is_suspect:
            while self._on_trial is not None or self._num_suspects:
                await self._changed.wait()
            self._unproven.add(request)
            return
        self._num_suspects += 1
        try:
            while self._unproven:
                await self._changed.wait()
            self._unproven.add(request)
            self._on_trial = request
            metrics.note_trial(job.model)
        finally:
            self._num_suspects -= 1
            self._notify()  # one that gave up may have kept others waiting
        trial = Trial(attempt=job.attempt)
        await until_done(lambda: self._bus.update_record(job.partition, job.request_id, {"trial": trial}))

    def prove(self, request: Hashable) -> None:
        """Take note that a request has said something, or has ended."""
        if request not in self._unproven:
            return
        self._unproven.remove(request)
        if request is self._on_trial:
            self._on_trial = None
        if not self._unproven:
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
