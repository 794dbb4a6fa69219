"""How long a sequence the replicas of each model can hold: what a conversation is cut to, and an answer may have.

A model's files say how long its context is; a replica may be set to less, or have KV blocks for less. Replicas tell it
in their heartbeats. Where none has been heard of lately the files count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from wire import topics
from wire.bus import Bus
from wire.heartbeats import MISSED_HEARTBEATS
from wire.messages import ReplicaStatus


class Rooms:
    """The newest heartbeat of each replica, as far as it says this."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: dict[str, dict[str, tuple[int, float]]] = {}  # by model and replica: tokens, good until

    async def follow(self, bus: Bus, model: str) -> None:
        """Listen to a model's replicas until cancelled."""
        async for status in bus.watch(topics.status(model), start="$"):
            if isinstance(status, ReplicaStatus):
                self.hear(status)

    def hear(self, status: ReplicaStatus) -> None:
        """Take a heartbeat."""
        replicas = self._found.setdefault(status.model, {})
        now = self._clock()
        for replica_id in [name for name, (_, until) in replicas.items() if until < now]:
            del replicas[replica_id]
        replicas.pop(status.replica_id, None)
        if status.state == "ready":
            # The last token of an answer is never computed, so it needs no block.
            num_tokens = min(status.max_model_len, status.num_blocks * status.block_size + 1)
            replicas[status.replica_id] = (num_tokens, now + MISSED_HEARTBEATS * status.interval_s)

    def most(self, model: str) -> int | None:
        """Return how many tokens, prompt and answer, fit the roomiest replica; None if none is known to be ready."""
        now = self._clock()
        return max((tokens for tokens, until in self._found.get(model, {}).values() if until >= now), default=None)
