"""One connection to a Redis server after its handshake: commands out, replies in, nothing between us and the loop.

redis-py dials (addresses, TLS, credentials); then we take the transport over, because its streams, tasks and checks
cost several times what a hop should. A line that saw anything but the replies it waits for is unfit for the next
caller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import hiredis
from redis._parsers.base import BaseParser
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ReadOnlyError

Arg = bytes | str | int | float
Command = tuple[Arg, ...]

Told = Callable[[list[Any] | RedisConnectionError], None]

_pack_one: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its stub names bytes only
# What redis-py has no word for: the disk is full, replicas are too few or cut off, the server has just become one.
_NOT_NOW = ("MISCONF", "NOREPLICAS", "MASTERDOWN", "UNBLOCKED")
_MORE = object()  # what the parser returns when a reply is not complete
# Of the next command; it has no reply itself.
_SKIP = _pack_one(("CLIENT", "REPLY", "SKIP"))


class Letter(NamedTuple):
    """Commands as bytes, and how many replies they have."""

    num_replies: int
    data: bytes


def pack(commands: Sequence[Command]) -> Letter:
    """Return commands as a letter. Raises TypeError or UnicodeEncodeError for an argument that no command can have."""
    return Letter(len(commands), b"".join(map(_pack_one, commands)))


def pack_silent(command: Command) -> Letter:
    """Return a command that shall have no reply: that it failed nobody hears. The server must know CLIENT REPLY."""
    return Letter(0, _SKIP + _pack_one(command))


class Line(asyncio.Protocol):
    """An open connection. Replies come in the order of the commands."""

    def __init__(self, dialled: AbstractConnection) -> None:
        self._dialled = dialled  # whoever forgets it closes it
        self._transport: asyncio.Transport = dialled._writer.transport  # type: ignore[union-attr, assignment]
        self._parser = hiredis.Reader(protocolError=InvalidResponse, replyError=_error, notEnoughData=_MORE)
        self._waiting: deque[tuple[int, Told]] = deque()
        self._replies: list[Any] = []
        self._lost: RedisConnectionError | None = None
        self._transport.set_protocol(self)

    @property
    def is_fit(self) -> bool:
        """Whether the next caller may have it: open, and nothing is still to come."""
        return self._lost is None and not self._waiting

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._lost is None

    def send(self, letter: Letter, tell: Told) -> None:
        """Send a letter; `tell` gets its replies, error replies in their places, or why none come.

        It is called from the loop, once, and must not raise; for a silent letter it gets an empty list when the reply
        to a later one shows that it was done. The line must be open. Letters are packed beforehand: what cannot be
        packed is its caller's fault alone, and nothing waits for its reply.
        """
        assert self._lost is None, "the line is lost"
        self._waiting.append((letter.num_replies, tell))
        self._transport.write(letter.data)

    def send_all(self, letters: Sequence[tuple[Letter, Told]]) -> None:
        """Send the letters of several callers in one write, for each as `send` does."""
        assert self._lost is None, "the line is lost"
        self._waiting.extend([(letter.num_replies, tell) for letter, tell in letters])
        self._transport.write(b"".join([letter.data for letter, _ in letters]))

    async def exchange(self, commands: Sequence[Command], *, timeout_s: float) -> list[Any]:
        """Send commands in one write and return their replies; an error reply stands in its place.

        Raises redis-py's ConnectionError when the line is lost, silent for too long, or refused by the server. A call
        that does not come to its end leaves the line unfit.
        """
        if self._lost is not None:
            raise self._lost
        letter = pack(commands)
        # A bare timer: a cancel scope costs a tenth of a hop.
        timer = asyncio.get_running_loop().call_later(timeout_s, self._fail, f"no reply within {timeout_s} s")
        try:
            return await answer_to(lambda tell: self.send(letter, tell))
        finally:
            timer.cancel()

    def close(self) -> None:
        """Close at once; whatever is still to come meets nobody."""
        self._fail("closed")
        self._transport.close()
        self._dialled._writer = self._dialled._reader = None

    def data_received(self, data: bytes) -> None:
        """Take replies from the loop."""
        try:
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not _MORE:
                self._take(reply)
        except InvalidResponse as error:
            self._fail(f"not a reply: {error}")

    def eof_received(self) -> None:
        """Take note that the server says no more."""
        self._fail("closed by the server")

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note that the connection is gone."""
        self._fail(f"connection lost: {exc!r}")

    def _take(self, reply: Any) -> None:
        while self._waiting and not self._waiting[0][0] and not isinstance(reply, RedisConnectionError):
            self._waiting.popleft()[1]([])
        if not self._waiting:
            self._fail("a reply that nobody asked for")
        elif isinstance(reply, RedisConnectionError):  # the server is loading, or will not have us
            self._fail(reply)
        else:
            self._replies.append(reply)
            if len(self._replies) == self._waiting[0][0]:
                replies, self._replies = self._replies, []
                self._waiting.popleft()[1](replies)

    def _fail(self, why: str | RedisConnectionError) -> None:
        if self._lost is None:
            self._lost = RedisConnectionError(why) if isinstance(why, str) else why
        waiting, self._waiting = self._waiting, deque()
        for _, tell in waiting:
            tell(self._lost)


class NotNowError(ReadOnlyError):
    """The server takes no writes as things stand. It may again: nothing was executed."""


def _error(text: str) -> Exception:
    known: Exception = BaseParser.parse_error(text)  # type: ignore[no-untyped-call]
    return NotNowError(text) if text.startswith(_NOT_NOW) else known


async def answer_to(send: Callable[[Told], None]) -> list[Any]:
    """Wait for what somebody is told who sends commands; a loss is raised. A caller may be cancelled."""
    answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def tell(outcome: list[Any] | RedisConnectionError) -> None:
        if answer.done():  # its caller was cancelled
            return
        if isinstance(outcome, list):
            answer.set_result(outcome)
        else:
            answer.set_exception(outcome)

    send(tell)
    try:
        return await answer
    except asyncio.CancelledError:
        if answer.done() and not answer.cancelled():
            answer.exception()  # both at once: nobody else will look at it
        raise
