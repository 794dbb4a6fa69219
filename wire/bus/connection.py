"""Connections to one Redis server: one request, one reply, and a connection that saw anything else is thrown away.

redis-py speaks the protocol; its pool and client are not used, because a hop must cost 0.1 ms and because here it is
plain to see that a cancelled call can never leave its reply for the next caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
from redis.asyncio.connection import AbstractConnection, Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from wire.bus.options import BusOptions

Arg = bytes | str | int | float


class Server:
    """The connections to one server. Calls share at most `max_connections`; blocking reads own theirs besides."""

    def __init__(self, kwargs: Mapping[str, Any], options: BusOptions) -> None:
        self._kwargs = dict(kwargs)
        self._class: type[AbstractConnection] = self._kwargs.pop("connection_class", Connection)
        # Timeouts are ours (one scope around request and reply): redis-py would make a task for every write.
        self._kwargs |= {
            "socket_timeout": None,
            "socket_connect_timeout": options.connect_timeout_s,
            "protocol": 2,
            "driver_info": None,
        }
        self._options = options
        self._idle: list[AbstractConnection] = []
        self._slots = anyio.Semaphore(options.max_connections, fast_acquire=True)

    @property
    def num_idle(self) -> int:
        """Connections that wait for a caller."""
        return len(self._idle)

    async def call(self, *args: Arg) -> Any:
        """Send one command and return its reply; an error reply is raised as redis-py's exception for it."""
        async with self._slots:
            return await self._exchange(args)

    async def call_blocking(self, *args: Arg) -> Any:
        """Send one command that may wait on the server; takes no slot, so that readers cannot starve callers."""
        return await self._exchange(args)

    async def ask(self, *args: Arg) -> Any:
        """Send ASKING and the command on one connection: a cluster slot that is just moving."""
        async with self._slots:
            return await self._exchange(args, asking=True)

    async def _exchange(self, args: tuple[Arg, ...], *, asking: bool = False) -> Any:
        line = await self._take()
        clean = False
        try:
            with anyio.fail_after(self._options.reply_timeout_s):
                if not line.is_connected:
                    await line.connect()  # type: ignore[no-untyped-call]
                if asking:
                    await line.send_command("ASKING", check_health=False)
                    await line.read_response()
                await line.send_packed_command(line.pack_command(*args), check_health=False)
                reply = await line.read_response()
                clean = True
                return reply
        except ResponseError:
            clean = True  # an error reply is a reply: the connection is in step
            raise
        except (TimeoutError, OSError) as error:
            raise RedisConnectionError(f"no reply from the bus: {error!r}") from error
        finally:
            if clean and line.is_connected:
                self._idle.append(line)
            else:
                await _drop(line)

    async def _take(self) -> AbstractConnection:
        while self._idle:
            line = self._idle.pop()
            try:
                if not await line.can_read():
                    return line
            except (RedisConnectionError, OSError):
                pass
            await _drop(line)  # closed by the server, or holds bytes that nobody asked for
        return self._class(**self._kwargs)

    async def aclose(self) -> None:
        """Close what is idle."""
        while self._idle:
            await _drop(self._idle.pop())


async def _drop(line: AbstractConnection) -> None:
    with anyio.CancelScope(shield=True):
        await line.disconnect(nowait=True)
