"""Which server holds a key: the only one, or the owner of the key's slot in a Redis Cluster.

Calls are repeated with backoff while the server is away. That is safe only for commands that may run twice, so every
command of the bus is one of those: scripts guarded by an acknowledgement or a record, reads, and XADDs whose nonce the
reader knows.
"""

from __future__ import annotations

import random
from typing import Any
from urllib.parse import urlsplit

import anyio
from redis.asyncio.connection import parse_url
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from wire.bus.connection import Arg, Server
from wire.bus.options import BusOptions
from wire.bus.scripts import Script
from wire.errors import OverloadedError, UnavailableError

# Nothing was executed, or what was executed may run again.
PASSING = (
    RedisConnectionError,
    RedisTimeoutError,
    BusyLoadingError,
    ClusterDownError,
    TryAgainError,
    ReadOnlyError,
)
_MAX_REDIRECTS = 5


class Route:
    """Sends commands to the server that holds their key."""

    def __init__(self, url: str, options: BusOptions) -> None:
        self._options = options
        self._asked_for_cluster = url.startswith(("redis+cluster://", "rediss+cluster://"))
        self._kwargs: dict[str, Any] = dict(parse_url(url.replace("+cluster://", "://", 1)))
        if urlsplit(url).scheme == "unix" and not self._kwargs.get("path"):
            raise ValueError("a unix:// bus URL needs a path")
        self._seed = Server(self._kwargs, options)
        self._servers: dict[tuple[str, int], Server] = {}
        self._owners: list[Server] | None = None

    @property
    def servers(self) -> list[Server]:
        """All servers known so far."""
        return [self._seed, *self._servers.values()]

    async def open(self) -> None:
        """Reach the server and learn whether it is part of a cluster."""
        info: bytes = await self._patiently(lambda: self._seed.call("INFO", "cluster"))
        if self._asked_for_cluster or b"cluster_enabled:1" in info:
            self._owners = []
            await self._patiently(self._learn_slots)

    async def aclose(self) -> None:
        """Close all connections."""
        for server in self.servers:
            await server.aclose()

    async def call(self, key: str, *args: Arg, blocking: bool = False) -> Any:
        """Run a command on the owner of `key`, reconnecting with backoff.

        Raises UnavailableError when the bus stays away, OverloadedError when its memory is full.
        """
        return await self._patiently(lambda: self.once(key, *args, blocking=blocking))

    async def run(self, script: Script, keys: tuple[str, ...], *args: Arg) -> Any:
        """Run a script by its digest; a server that does not know it yet (a restarted one) is sent the text."""
        try:
            return await self.call(keys[0], "EVALSHA", script.digest, len(keys), *keys, *args)
        except NoScriptError:
            return await self.call(keys[0], "EVAL", script.text, len(keys), *keys, *args)

    async def once(self, key: str, *args: Arg, blocking: bool = False) -> Any:
        """Run a command once; only redirections of the cluster are followed."""
        server = self._owner(key)
        for _ in range(_MAX_REDIRECTS):
            try:
                return await (server.call_blocking(*args) if blocking else server.call(*args))
            except MovedError as moved:
                server = self._server(moved.host, int(moved.port))
                if self._owners:
                    self._owners[moved.slot_id] = server
            except AskError as asked:
                return await self._server(asked.host, int(asked.port)).ask(*args)
        raise ClusterDownError("too many redirections")

    def _owner(self, key: str) -> Server:
        return self._owners[key_slot(key.encode())] if self._owners else self._seed

    def _server(self, host: str, port: int) -> Server:
        if (host, port) not in self._servers:
            self._servers[host, port] = Server(self._kwargs | {"host": host, "port": port}, self._options)
        return self._servers[host, port]

    async def _learn_slots(self) -> None:
        for server in self.servers:
            try:
                ranges = await server.call("CLUSTER", "SLOTS")
            except PASSING:
                continue
            owners = [self._seed] * 16_384
            for first, last, (host, port, *_), *_replicas in ranges:
                name = host.decode() if host else self._kwargs.get("host", "localhost")
                owners[first : last + 1] = [self._server(name, port)] * (last - first + 1)
            self._owners = owners
            return
        raise ClusterDownError("no node of the cluster answers")

    async def _patiently(self, attempt: Any) -> Any:
        give_up = anyio.current_time() + self._options.patience_s
        delay = 0.02
        while True:
            try:
                return await attempt()
            except OutOfMemoryError as error:
                raise OverloadedError("the bus is out of memory", retry_after_s=1.0) from error
            except PASSING as error:
                if anyio.current_time() + delay > give_up:
                    raise UnavailableError("the message bus does not answer") from error
            await anyio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, 1.0)
            if self._owners is not None:
                await self._refresh()

    async def _refresh(self) -> None:
        try:
            await self._learn_slots()
        except PASSING:
            return
