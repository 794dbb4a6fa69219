"""Connections to one Redis server: one that all calls share, and one for each reader that blocks on the server.

redis-py dials; its pool and client are not used, because a hop must cost 0.1 ms and because here it is plain to see
that a cancelled call can never leave its reply for the next caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from wire.bus.line import Arg, Command, Line
from wire.bus.names import Names
from wire.bus.options import BusOptions
from wire.bus.way import Way


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
    """The connections to one server. Calls share one; blocking reads have theirs besides."""

    def __init__(self, kwargs: Mapping[str, Any], options: BusOptions) -> None:
        self._kwargs = dict(kwargs)
        given: type[AbstractConnection] = self._kwargs.pop("connection_class", Connection)
        self._class = _CLASSES.get(given, given)
        if issubclass(self._class, _TcpLine):
            self._kwargs["names"] = Names()
        # Timeouts are ours (one scope around dialling): redis-py would make a task for every write.
        self._kwargs |= {
            "socket_timeout": None,
            "socket_connect_timeout": options.connect_timeout_s,
            "protocol": 2,
            "driver_info": None,
        }
        self._options = options
        self._idle: list[Line] = []
        self._shared: Way | RedisConnectionError | None = None  # what came of dialling last
        self._dialling = anyio.Lock(fast_acquire=True)
        self._is_left = False

    @property
    def num_idle(self) -> int:
        """Open connections that wait for a reader."""
        return len(self._idle)

    async def call(self, *args: Arg) -> Any:
        """Send one command and return its reply; an error reply is raised as redis-py's exception for it."""
        return _last(await self.call_many((args,)))

    async def call_blocking(self, *args: Arg, before: Sequence[Command] = ()) -> Any:
        """Send one command that may wait on the server, on a connection that nobody else has meanwhile.

        Commands `before` it go in the same write; their replies are not returned, their errors are raised.
        """
        return _last(await self._exchange([*before, args]))

    async def call_many(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one write; error replies are returned in their places."""
        way = self._shared
        if not isinstance(way, Way) or not way.is_open:
            way = await self._way()
        try:
            return await way.exchange(commands)
        finally:
            if self._is_left:
                self._close_what_rests()

    async def ask(self, *args: Arg) -> Any:
        """Send ASKING and the command on one connection: a cluster slot that is just moving."""
        return _last(await self.call_many((("ASKING",), args)))

    async def dial(self) -> Line:
        """Open a connection, for a caller who keeps and closes it. Raises redis-py's ConnectionError."""
        dialled = self._class(**self._kwargs)
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + self._options.reply_timeout_s):
                await dialled.connect()  # type: ignore[no-untyped-call]
                return Line(dialled)
            raise RedisConnectionError(f"no connection within {self._options.reply_timeout_s} s")
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await dialled.disconnect(nowait=True)
            if isinstance(error, OSError):
                raise RedisConnectionError(f"no connection: {error!r}") from error
            raise

    def leave(self) -> None:
        """Close what nobody waits on, and the rest as it ends: the server holds nothing of ours any more."""
        self._is_left = True
        self._close_what_rests()

    async def aclose(self) -> None:
        """Close what calls share, and what is idle."""
        if isinstance(self._shared, Way):
            self._shared.close()
        self._close_idle()

    def _close_what_rests(self) -> None:
        if isinstance(self._shared, Way) and not self._shared.num_unanswered:
            self._shared.close()
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _way(self) -> Way:
        """Dial the line that calls share. Who waits for somebody's dialling shares its outcome, a failure too."""
        before = self._shared
        async with self._dialling:
            if self._shared is before:
                if isinstance(before, Way):
                    before.close()
                try:
                    self._shared = Way(await self.dial(), self._options.reply_timeout_s)
                except RedisConnectionError as error:
                    self._shared = error
            if isinstance(self._shared, Way):
                return self._shared
            assert self._shared is not None
            raise self._shared

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        line = self._take() or await self.dial()
        in_step = False
        try:
            replies = await line.exchange(commands, timeout_s=self._options.reply_timeout_s)
            in_step = True
            return replies
        finally:
            # Also on cancellation: whatever is still to come on this line must meet nobody.
            if in_step and line.is_fit and not self._is_left:
                self._idle.append(line)
            else:
                line.close()

    def _take(self) -> Line | None:
        while self._idle:
            line = self._idle.pop()
            if line.is_fit:
                return line
            line.close()  # closed by the server, or holds bytes that nobody asked for
        return None


def _last(replies: list[Any]) -> Any:
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply
    return replies[-1]
