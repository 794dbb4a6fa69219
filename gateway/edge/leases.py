"""Who makes which response in the background: an edge promises to live on, and renews its promise while it does.

When a promise runs out, another edge takes the response over. Nothing worse than double work comes of a promise that
ran out too early: only one of the two can write the events.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from wire import topics
from wire.bus.route import Route
from wire.bus.script import Script

_AT_ONCE = 16

CLAIM = Script("""
-- KEYS leases. ARGV response, now, until. 1 if its promise had run out and is now ours.
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) > tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
return 1
""")


class Leases:
    """The promises of one partition."""

    def __init__(self, route: Route, partition: int, *, lease_s: float) -> None:
        self._route = route
        self._lease_s = lease_s
        self._key = topics.background(partition)

    async def take(self, response_id: str) -> None:
        """Promise to make a new response."""
        await self._route.call(self._key, "ZADD", self._key, time.time() + self._lease_s, response_id)

    async def renew(self, response_ids: Iterable[str]) -> None:
        """Promise to live on; what was given up meanwhile stays so."""
        until = time.time() + self._lease_s
        pairs: list[str | float] = [word for response_id in response_ids for word in (until, response_id)]
        if pairs:
            await self._route.call(self._key, "ZADD", self._key, "XX", *pairs)

    async def release(self, response_id: str) -> None:
        """Let another edge go on at once."""
        await self._route.call(self._key, "ZADD", self._key, "XX", 0, response_id)

    async def drop(self, response_id: str) -> None:
        """Forget a response that is over."""
        await self._route.call(self._key, "ZREM", self._key, response_id)

    async def run_out(self) -> list[str]:
        """Return responses whose edge has not kept its promise."""
        command = ("ZRANGEBYSCORE", self._key, "-inf", time.time(), "LIMIT", 0, _AT_ONCE)
        return [response_id.decode() for response_id in await self._route.call(self._key, *command)]

    async def claim(self, response_id: str) -> bool:
        """Take over a response; False if somebody else was faster."""
        now = time.time()
        return bool(await self._route.run(CLAIM, (self._key,), response_id, now, now + self._lease_s))
