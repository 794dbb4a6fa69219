"""How long a sequence the replicas of each model can hold: what a conversation is cut to, and an answer may have.

A model's files say how long its context is; a replica may be set to less, or have KV blocks for less. Replicas tell it
in their heartbeats. Where none has been heard of lately the files count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from wire import topics
from wire.bus import Bus
from wire.heartbeats import Heartbeats
from wire.messages import ReplicaStatus


class Rooms:
    """The newest heartbeat of each replica, as far as it says this."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heartbeats = Heartbeats()
        self._rooms: dict[str, tuple[str, int]] = {}  # of ready replicas: their model, and tokens

    async def follow(self, bus: Bus, model: str) -> None:
        """Listen to a model's replicas until cancelled."""
        async for status in bus.watch(topics.status(model), start="$"):
            if isinstance(status, ReplicaStatus):
                self.hear(status)

    def hear(self, status: ReplicaStatus) -> None:
        """Take a heartbeat."""
        lives = self._heartbeats.hear(status, self._clock())
        if lives and status.state == "ready":
            # The last token of an answer is never computed, so it needs no block.
            num_tokens = min(status.max_model_len, status.num_blocks * status.block_size + 1)
            self._rooms[status.replica_id] = (status.model, num_tokens)
        else:
            self._rooms.pop(status.replica_id, None)

    def most(self, model: str) -> int | None:
        """Return how many tokens, prompt and answer, fit the roomiest replica; None if none is known to be ready."""
        for replica_id in self._heartbeats.lost(self._clock()):
            self._rooms.pop(replica_id, None)
        return max((tokens for name, tokens in self._rooms.values() if name == model), default=None)
