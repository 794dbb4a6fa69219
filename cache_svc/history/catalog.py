"""The list of a tenant's conversations, the last used first.

It is a sorted set in a slot of its own, written after the conversation itself: an entry whose conversation is not there
(any more) is left out and removed. A page goes on from the time of the conversation named by `after`, wherever that one
lies, so that pages of several partitions can be merged.
"""

from __future__ import annotations

from typing import Any

import anyio
import msgspec

from cache_svc.history.keys import catalog, keys_of, root_of
from cache_svc.history.store import missing
from wire.bus.route import Route
from wire.messages import MAX_METADATA

_FIELDS = ("tenant", "conversation", "created", "updated", "metadata", "title", "num_turns")


class Catalog:
    """The conversations of each tenant, by partition."""

    def __init__(self, route: Route, *, ttl_ms: int) -> None:
        self._route = route
        self._ttl_ms = ttl_ms

    async def touch(self, tenant: str, partition: int, conversation_id: str, now_ms: int) -> None:
        """Put a conversation on top of the list."""
        key = catalog(tenant, partition)
        await self._route.call(key, "ZADD", key, "GT", now_ms, conversation_id)
        await self._route.call(key, "ZREMRANGEBYSCORE", key, "-inf", now_ms - self._ttl_ms)
        await self._route.call(key, "PEXPIRE", key, self._ttl_ms)

    async def remove(self, tenant: str, partition: int, conversation_id: str) -> None:
        """Take a conversation off the list."""
        key = catalog(tenant, partition)
        await self._route.call(key, "ZREM", key, conversation_id)

    async def page(
        self, tenant: str, partition: int, *, limit: int, after: str | None
    ) -> tuple[list[dict[str, Any]], bool]:
        """Return up to `limit` conversations, and whether more follow. Raises NotFoundError if `after` is unknown."""
        place = None if after is None else (await self._time_of(tenant, partition, after), after)
        found: list[dict[str, Any]] = []
        while True:
            entries = await self._below(tenant, partition, place, limit + 1)
            found += await self._read(tenant, partition, [conversation_id for _, conversation_id in entries])
            if len(found) > limit or len(entries) <= limit:
                return found[:limit], len(found) > limit
            place = entries[-1]

    async def read(self, tenant: str, conversation_id: str) -> dict[str, Any] | None:
        """Return a conversation in OpenAI's shape (and ours: updated_at, num_turns), or None."""
        root = root_of(conversation_id)
        if root is None:
            return None
        head = keys_of(root).head
        owner, name, created, updated, metadata, title, num_turns = await self._route.call(
            head, "HMGET", head, *_FIELDS
        )
        if owner is None or owner.decode() != tenant or name is None or name.decode() != conversation_id:
            return None
        shown: dict[str, str] = msgspec.msgpack.decode(metadata) if metadata else {}
        if title and not shown.get("title") and len(shown) < MAX_METADATA:
            shown = {**shown, "title": title.decode()}
        return {
            "id": conversation_id,
            "object": "conversation",
            "created_at": int(created) // 1000,
            "updated_at": int(updated) / 1000,
            "metadata": shown,
            "num_turns": int(num_turns or 0),
        }

    async def _time_of(self, tenant: str, partition: int, conversation_id: str) -> int:
        key = catalog(tenant, partition)
        score = await self._route.call(key, "ZSCORE", key, conversation_id)
        if score is not None:
            return int(float(score))
        elsewhere = await self.read(tenant, conversation_id)
        if elsewhere is None:
            raise missing(conversation_id, "after")
        updated_at: float = elsewhere["updated_at"]
        return round(updated_at * 1000)

    async def _below(
        self, tenant: str, partition: int, place: tuple[int, str] | None, count: int
    ) -> list[tuple[int, str]]:
        """Return the `count` entries after a place (time, id), in falling order of both."""
        key = catalog(tenant, partition)
        found: list[tuple[int, str]] = []
        offset = 0
        while len(found) < count:
            most = "+inf" if place is None else place[0]
            page = await self._route.call(
                key, "ZREVRANGEBYSCORE", key, most, "-inf", "WITHSCORES", "LIMIT", offset, count
            )
            entries = [(int(float(page[at + 1])), page[at].decode()) for at in range(0, len(page), 2)]
            found += [entry for entry in entries if place is None or entry < place]
            if len(entries) < count:
                break
            offset += count
        return found[:count]

    async def _read(self, tenant: str, partition: int, ids: list[str]) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any] | None] = {}

        async def read(conversation_id: str) -> None:
            found[conversation_id] = await self.read(tenant, conversation_id)

        async with anyio.create_task_group() as tasks:
            for conversation_id in ids:
                tasks.start_soon(read, conversation_id)
        for conversation_id in ids:
            if found[conversation_id] is None:
                await self.remove(tenant, partition, conversation_id)
        return [shown for conversation_id in ids if (shown := found[conversation_id]) is not None]
