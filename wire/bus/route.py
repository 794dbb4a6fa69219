"""Which server holds a key: the only one, or the owner of the key's slot in a Redis Cluster.

Calls are repeated with backoff while the server is away. That is safe only for commands that may run twice, so every
command of the bus is one of those: scripts guarded by an acknowledgement or a record, reads, and XADDs whose nonce the
reader knows.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio
from redis.asyncio.connection import parse_url
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from wire.bus.connection import Server
from wire.bus.line import Arg, Command
from wire.bus.options import BusOptions
from wire.bus.script import Script
from wire.errors import OverloadedError, UnavailableError
from wire.settings import SettingsError

T = TypeVar("T")

PASSING = (RedisConnectionError, RedisTimeoutError, BusyLoadingError, ClusterDownError, TryAgainError, ReadOnlyError)
"""Errors that go away by themselves: nothing was executed, or what was executed may run again."""

NUM_SLOTS = 16_384
_MAX_REDIRECTS = 5
_FIRST_DELAY_S, _LAST_DELAY_S = 0.02, 1.0
_dice = random.Random()  # our own: whoever seeds the common one, a test for one, is not disturbed


class Route:
    """Sends commands to the server that holds their key."""

    def __init__(self, url: str, options: BusOptions) -> None:
        """`url`: see `Bus.open`. Raises SettingsError for what is no such address."""
        self._options = options
        self._asked_for_cluster = url.startswith(("redis+cluster://", "rediss+cluster://"))
        self._kwargs = _address(url)
        self._seed = Server(self._kwargs, options)
        self._servers: dict[tuple[str, int], Server] = {}
        self._owners: list[Server] | None = None  # by slot; None: no cluster

    @property
    def servers(self) -> list[Server]:
        """All servers known so far."""
        return [self._seed, *self._servers.values()]

    @property
    def is_cluster(self) -> bool:
        """Whether keys are spread over several servers."""
        return self._owners is not None

    async def open(self) -> None:
        """Reach the server and learn whether it is part of a cluster."""
        info: bytes = await self._patiently(lambda: self._seed.call("INFO", "cluster"))
        if self._asked_for_cluster or b"cluster_enabled:1" in info:
            self._owners = []
            await self._patiently(self._learn_slots)
            self._seed.leave()  # from now on it is only asked, seldom, who owns what

    async def aclose(self) -> None:
        """Close all connections."""
        for server in self.servers:
            await server.aclose()

    async def call(self, key: str, *args: Arg) -> Any:
        """Run a command on the owner of `key`, reconnecting with backoff.

        Raises UnavailableError when the bus stays away, OverloadedError when its memory is full.
        """
        return await self._patiently(lambda: self.once(key, *args))

    async def run(self, script: Script, keys: tuple[str, ...], *args: Arg, repeat: bool = True) -> Any:
        """Run a script by its digest; a server that does not know it yet (a restarted one) is sent the text.

        `repeat` False: not again after a lost reply, for a caller who must know of it.
        """
        send = self.call if repeat else self.once
        try:
            return await send(keys[0], "EVALSHA", script.digest, len(keys), *keys, *args)
        except NoScriptError:
            return await send(keys[0], "EVAL", script.text, len(keys), *keys, *args)

    async def run_many(self, script: Script, calls: Sequence[tuple[str, tuple[Arg, ...]]]) -> list[Any]:
        """Run a script of one key for many keys, in one write per server; return the replies in order."""
        replies: list[Any] = [None] * len(calls)
        places: dict[Server, list[int]] = {}
        for place, (key, _) in enumerate(calls):
            places.setdefault(self.owner(key), []).append(place)
        for server, mine in places.items():
            commands = [("EVALSHA", script.digest, 1, calls[place][0], *calls[place][1]) for place in mine]
            try:
                found = await server.call_many(commands)
            except PASSING as error:
                found = [error] * len(mine)
            for place, reply in zip(mine, found, strict=True):
                if isinstance(reply, Exception):  # moved, unknown to a restarted server, or lost: once more, one by one
                    reply = await self.run(script, (calls[place][0],), *calls[place][1])
                replies[place] = reply
        return replies

    async def once(self, key: str, *args: Arg, blocking: bool = False, before: Sequence[Command] = ()) -> Any:
        """Run a command once; only redirections of a cluster are followed.

        `blocking`: it may wait on the server; commands of the same key `before` it go in the same write.
        """
        server = self.owner(key)
        for _ in range(_MAX_REDIRECTS):
            try:
                return await (server.call_blocking(*args, before=before) if blocking else server.call(*args))
            except MovedError as moved:
                server = self._server(moved.host, int(moved.port))
                if self._owners and self._owners[moved.slot_id] is not server:
                    self._owners[moved.slot_id] = server
                    await self.learn_again(server)  # other slots of its old owner may have moved too
            except AskError as asked:
                return await self._server(asked.host, int(asked.port)).ask(*args)
        raise ClusterDownError("too many redirections")

    async def learn_again(self, told_by: Server | None = None) -> None:
        """Ask who owns which slot, after an error that may come from a change; without an answer all stays as it is.

        `told_by`: whom to ask before all others.
        """
        if self._owners is not None:
            try:
                await self._learn_slots(told_by)
            except (*PASSING, ResponseError):
                return

    def owner(self, key: str) -> Server:
        """Return the server that holds a key, as far as we know."""
        return self._owners[key_slot(key.encode())] if self._owners else self._seed

    def _server(self, host: str, port: int) -> Server:
        if (host, port) not in self._servers:
            self._servers[host, port] = Server(self._kwargs | {"host": host, "port": port}, self._options)
        return self._servers[host, port]

    async def _learn_slots(self, told_by: Server | None = None) -> None:
        """Ask for the owners of all slots; what own none any more are left."""
        asked, ranges = await self._slot_ranges(told_by)
        owners = [asked] * NUM_SLOTS
        for first, last, (host, port, *_), *_replicas in ranges:
            name = host.decode() if host else self._kwargs.get("host", "localhost")
            owners[first : last + 1] = [self._server(name, port)] * (last - first + 1)
        self._owners = owners
        in_use = set(owners)
        for address, server in list(self._servers.items()):
            if server not in in_use:
                self._servers.pop(address).leave()

    async def _slot_ranges(self, told_by: Server | None) -> tuple[Server, list[Any]]:
        """Return what the first server says that knows an owner of each slot, or who knows most of them.

        One that has left the cluster knows none, and one that is cut off from the others must not be asked first for
        ever. The seed comes last: it may be such a one. Raises ClusterDownError, or what was said to the question.
        """
        known = list(self._servers.values())
        _dice.shuffle(known)
        most, found = 0, None
        refusal: Exception = ClusterDownError("no node of the cluster answers")
        for server in dict.fromkeys((*([told_by] if told_by else ()), *known, self._seed)):
            try:
                ranges = await server.call("CLUSTER", "SLOTS")
            except PASSING:
                continue
            except ResponseError as error:  # it is in no cluster, or does not say
                refusal = error
                continue
            if (num_slots := sum(last - first + 1 for first, last, *_ in ranges)) > most:
                most, found = num_slots, (server, ranges)
            if most == NUM_SLOTS:
                break
        if found is None:
            raise refusal
        return found

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        give_up = time.monotonic() + self._options.patience_s
        delay = _FIRST_DELAY_S
        while True:
            try:
                return await attempt()
            except OutOfMemoryError as error:
                raise OverloadedError("the bus is out of memory", retry_after_s=1.0) from error
            except PASSING as error:
                if _is_refusal(error):
                    raise UnavailableError(f"the message bus refuses us: {error}") from error
                if time.monotonic() + delay > give_up:
                    raise UnavailableError(f"the message bus does not answer: {error}") from error
            await anyio.sleep(delay * _dice.uniform(0.5, 1.0))
            delay = min(delay * 2, _LAST_DELAY_S)
            await self.learn_again()


def _address(url: str) -> dict[str, Any]:
    """Return how a connection is made. The fault is not quoted: it may hold a password."""
    try:
        return dict(parse_url(url.replace("+cluster://", "://", 1)))
    except ValueError:
        wrong = "redis_url is no address of a bus" if url else "redis_url is not set"
        raise SettingsError(
            f"{wrong}; write redis://HOST:PORT, rediss://HOST:PORT, redis+cluster://HOST:PORT or unix:///PATH"
        ) from None


def _is_refusal(error: BaseException | None) -> bool:
    # redis-py counts these as connection errors and wraps them when they come during the handshake.
    refusals = (AuthenticationError, AuthorizationError)
    return isinstance(error, refusals) or (error is not None and isinstance(error.__cause__, refusals))
