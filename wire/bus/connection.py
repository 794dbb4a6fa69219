"""Connections to one Redis server: one request, one reply, and a connection that saw anything else is thrown away.

redis-py speaks the protocol; its pool and client are not used, because a hop must cost 0.1 ms and because here it is
plain to see that a cancelled call can never leave its reply for the next caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from wire.bus.names import Names
from wire.bus.options import BusOptions

Arg = bytes | str | int | float
Command = tuple[Arg, ...]


class _TcpLine(Connection):
    """A line over TCP whose host name we look up ourselves (see `wire.bus.names`); each address is tried in turn."""

    def __init__(self, *, names: Names, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._names = names
        self._address = self.host

    async def _connect(self) -> None:
        failed: OSError = ConnectionError("the name has no address")
        for address in await self._names.addresses(self.host, int(self.port)):
            self._address = address
            try:
                return await super()._connect()  # type: ignore[no-untyped-call, no-any-return]
            except OSError as error:  # a timeout too
                failed = error
        raise failed

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "host": self._address}


class _TlsLine(_TcpLine, SSLConnection):
    """The same under TLS; the certificate must bear the name, not the address."""

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "server_hostname": self.host}


_CLASSES: dict[type[AbstractConnection], type[AbstractConnection]] = {Connection: _TcpLine, SSLConnection: _TlsLine}


class Server:
    """The connections to one server. Calls share at most `max_connections`; blocking reads have theirs besides."""

    def __init__(self, kwargs: Mapping[str, Any], options: BusOptions) -> None:
        self._kwargs = dict(kwargs)
        given: type[AbstractConnection] = self._kwargs.pop("connection_class", Connection)
        self._class = _CLASSES.get(given, given)
        if issubclass(self._class, _TcpLine):
            self._kwargs["names"] = Names()
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
        """Open connections that wait for a caller."""
        return len(self._idle)

    @property
    def num_free(self) -> int:
        """Callers that would get a connection at once."""
        return self._slots.value

    async def call(self, *args: Arg) -> Any:
        """Send one command and return its reply; an error reply is raised as redis-py's exception for it."""
        async with self._slots:
            return _last(await self._exchange([args]))

    async def call_blocking(self, *args: Arg, before: Sequence[Command] = ()) -> Any:
        """Send one command that may wait on the server; takes no slot, so that readers cannot starve callers.

        Commands `before` it go in the same write; their replies are not returned, their errors are raised.
        """
        return _last(await self._exchange([*before, args]))

    async def call_many(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one write; error replies are returned in their places."""
        async with self._slots:
            return await self._exchange(commands)

    async def ask(self, *args: Arg) -> Any:
        """Send ASKING and the command on one connection: a cluster slot that is just moving."""
        async with self._slots:
            return _last(await self._exchange([("ASKING",), args]))

    async def aclose(self) -> None:
        """Close what is idle."""
        while self._idle:
            await _drop(self._idle.pop())

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        line = await self._take()
        in_step = False
        try:
            # Bare, because `fail_after` costs 10 us more, a tenth of a hop.
            with anyio.CancelScope(deadline=anyio.current_time() + self._options.reply_timeout_s):
                if not line.is_connected:
                    await line.connect()  # type: ignore[no-untyped-call]
                one = len(commands) == 1
                packed = line.pack_command(*commands[0]) if one else line.pack_commands(commands)
                await line.send_packed_command(packed, check_health=False)
                replies = [await _reply(line) for _ in commands]
                in_step = True
                return replies
            raise RedisConnectionError(f"no reply within {self._options.reply_timeout_s} s")
        except OSError as error:
            raise RedisConnectionError(f"no reply: {error!r}") from error
        finally:
            # Also on cancellation: whatever is still to come on this line must meet nobody.
            if in_step and line.is_connected:
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


async def _reply(line: AbstractConnection) -> Any:
    try:
        return await line.read_response(disconnect_on_error=False)  # `_exchange` drops it
    except ResponseError as error:
        return error  # an error reply is a reply: the line stays in step


def _last(replies: list[Any]) -> Any:
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply
    return replies[-1]


async def _drop(line: AbstractConnection) -> None:
    with anyio.CancelScope(shield=True):
        await line.disconnect(nowait=True)
