"""Sends to inboxes without waiting: the next message is on its way before the reply to the last one has come.

For messages that may come twice or with a gap, as tokens do: they carry no nonce, and who sends one again after a bad
reply may overtake himself. Most go as a bare XADD, a quarter of the commands that the script makes; now and then one
goes by the script, which looks whether the stream is full and keeps it from expiring.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from wire import codec
from wire.bus.connection import Server
from wire.bus.line import Command, Line
from wire.bus.options import BusOptions, inbox_ttl_ms
from wire.bus.route import PASSING, Route
from wire.bus.scripts import SEND
from wire.messages import AnyMessage

CHECK_S = 0.25  # a stream may grow past its bound by what comes in this time
MAX_UNANSWERED = 16  # a server that is so far behind is not pressed further


class _Way:
    """A line to one server, and what it still owes us."""

    def __init__(self, line: Line, timeout_s: float) -> None:
        self.line = line
        self.num_unanswered = 0
        self._timeout_s = timeout_s
        self._heard_at = 0.0
        self._watch: asyncio.TimerHandle | None = None

    def send(self, command: Command, tell: Callable[[Any], None]) -> None:
        """Send a command; `tell` gets its reply, or an exception."""
        if not self.num_unanswered:
            self._heard_at = time.monotonic()
        self.num_unanswered += 1

        def told(outcome: list[Any] | RedisConnectionError) -> None:
            self.num_unanswered -= 1
            self._heard_at = time.monotonic()
            tell(outcome[0] if isinstance(outcome, list) else outcome)

        self.line.send((command,), told)
        if self._watch is None:  # one timer for all that is under way
            self._watch = asyncio.get_running_loop().call_later(self._timeout_s, self._look)

    def close(self) -> None:
        """Close the line; what is unanswered is told."""
        if self._watch is not None:
            self._watch.cancel()
        self.line.close()

    def _look(self) -> None:
        self._watch = None
        if not self.num_unanswered:
            return
        left_s = self._heard_at + self._timeout_s - time.monotonic()
        if left_s <= 0:
            self.line.close()
        else:
            self._watch = asyncio.get_running_loop().call_later(left_s, self._look)


class Courier:
    """The ways of one sender. All its methods run in one event loop."""

    def __init__(self, route: Route, options: BusOptions) -> None:
        self._route = route
        self._timeout_s = options.reply_timeout_s
        self._ways: dict[Server, _Way] = {}
        self._checked_at: dict[str, float] = {}

    def may_post(self, stream: str) -> bool:
        """Whether there is a way to a stream, and room on it."""
        way = self._ways.get(self._route.owner(stream))
        return way is not None and way.line.is_open and way.num_unanswered < MAX_UNANSWERED

    def post(self, stream: str, message: AnyMessage, *, maxlen: int, tell: Callable[[bool], None]) -> None:
        """Send a message where `may_post` holds; `tell` is called later with whether it arrived, and must not raise.

        False: the stream is full, or nothing is known of the message.
        """
        now, raw = time.monotonic(), codec.encode(message)
        command: Command = ("XADD", stream, "*", "m", raw)
        if now - self._checked_at.get(stream, -CHECK_S) >= CHECK_S:
            self._checked_at[stream] = now
            command = ("EVALSHA", SEND.digest, 1, stream, maxlen, inbox_ttl_ms(stream), "", time.time(), raw)

        def told(reply: Any) -> None:
            arrived = bool(reply) and not isinstance(reply, Exception)
            if not arrived:
                self._checked_at.pop(stream, None)
            tell(arrived)

        self._ways[self._route.owner(stream)].send(command, told)

    async def prepare(self, stream: str) -> None:
        """Make a way to a stream if there is none; a server that does not answer is left alone."""
        server = self._route.owner(stream)
        way = self._ways.get(server)
        if way is None or not way.line.is_open:
            try:
                line = await server.dial()
                # A server that does not let us load it has it from the calls of others, or refuses the first message.
                await line.exchange((("SCRIPT", "LOAD", SEND.text),), timeout_s=self._timeout_s)
            except PASSING:
                return
            if way is not None:
                way.close()
            self._ways[server] = _Way(line, self._timeout_s)
        if len(self._checked_at) > 1_000:  # edges come and go
            self._checked_at.clear()

    def close(self) -> None:
        """Close all ways."""
        while self._ways:
            self._ways.popitem()[1].close()
