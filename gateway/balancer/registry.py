"""A record of the replicas that may hold work, so that a starting balancer finds those that died while it was away."""

from __future__ import annotations

import time

from wire.bus import Bus
from wire.topics import PREFIX


class Registry:
    """The ids of one model's replicas, from the first heartbeat until their last work has been placed elsewhere."""

    def __init__(self, bus: Bus, model: str) -> None:
        self._bus = bus
        self._key = f"{PREFIX}:replicas:{model}"

    async def note(self, replica_id: str) -> None:
        """Remember a replica."""
        await self._bus.route.call(self._key, "HSET", self._key, replica_id, time.time())

    async def forget(self, replica_id: str) -> None:
        """Forget a replica that holds no work and never comes back."""
        await self._bus.route.call(self._key, "HDEL", self._key, replica_id)

    async def replicas(self) -> list[str]:
        """Return the ids of all replicas that may hold work."""
        return [raw.decode() for raw in await self._bus.route.call(self._key, "HKEYS", self._key)]
