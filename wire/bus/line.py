"""One connection to a Redis server after its handshake: commands out, replies in, nothing between us and the loop.

redis-py dials (addresses, TLS, credentials); then we take the transport over, because its streams, tasks and checks
cost several times what a hop should. A line that saw anything but the replies it waits for is unfit for the next
caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import hiredis
from redis._parsers.base import BaseParser
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse

Arg = bytes | str | int | float
Command = tuple[Arg, ...]

_MORE = object()  # what the parser returns when a reply is not complete


class Line(asyncio.Protocol):
    """An open connection; one exchange at a time."""

    def __init__(self, dialled: AbstractConnection) -> None:
        self._dialled = dialled  # whoever forgets it closes it
        self._transport: asyncio.Transport = dialled._writer.transport  # type: ignore[union-attr, assignment]
        self._parser = hiredis.Reader(
            protocolError=InvalidResponse, replyError=BaseParser.parse_error, notEnoughData=_MORE
        )
        self._answer: asyncio.Future[list[Any]] | None = None
        self._replies: list[Any] = []
        self._num_wanted = 0
        self._lost: Exception | None = None
        self._transport.set_protocol(self)

    @property
    def is_fit(self) -> bool:
        """Whether the next caller may have it: open, and nothing is still to come."""
        return self._lost is None and self._answer is None

    async def exchange(self, commands: Sequence[Command], *, timeout_s: float) -> list[Any]:
        """Send commands in one write and return their replies; an error reply stands in its place.

        Raises redis-py's ConnectionError when the line is lost, silent for too long, or refused by the server. A call
        that does not come to its end leaves the line unfit.
        """
        if self._lost is not None:
            raise self._lost
        assert self._answer is None, "one exchange at a time"
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Any]] = loop.create_future()
        self._answer = answer
        self._num_wanted = len(commands)
        self._transport.write(_packed(commands))
        # A bare timer: a cancel scope costs a tenth of a hop.
        timer = loop.call_later(timeout_s, self._fail, RedisConnectionError(f"no reply within {timeout_s} s"))
        try:
            replies = await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():
                answer.exception()  # both at once: nobody else will look at it
            raise
        finally:
            timer.cancel()
        self._answer = None
        return replies

    def close(self) -> None:
        """Close at once; whatever is still to come meets nobody."""
        self._fail(RedisConnectionError("closed"))
        self._transport.close()
        self._dialled._writer = self._dialled._reader = None

    def data_received(self, data: bytes) -> None:
        """Take replies from the loop."""
        try:
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not _MORE:
                self._take(reply)
        except InvalidResponse as error:
            self._fail(RedisConnectionError(f"not a reply: {error}"))

    def eof_received(self) -> None:
        """Take note that the server says no more."""
        self._fail(RedisConnectionError("closed by the server"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note that the connection is gone."""
        self._fail(RedisConnectionError(f"connection lost: {exc!r}"))

    def _take(self, reply: Any) -> None:
        if self._answer is None:
            self._fail(RedisConnectionError("a reply that nobody asked for"))
        elif isinstance(reply, RedisConnectionError):  # the server is loading, or will not have us
            self._fail(reply)
        else:
            self._replies.append(reply)
            if len(self._replies) == self._num_wanted:
                replies, self._replies = self._replies, []
                if not self._answer.done():  # its caller was cancelled
                    self._answer.set_result(replies)

    def _fail(self, error: Exception) -> None:
        self._lost = self._lost or error
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._lost)


def _packed(commands: Sequence[Command]) -> bytes:
    return b"".join([hiredis.pack_command(command) for command in commands])  # type: ignore[arg-type]
