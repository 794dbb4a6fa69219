"""Sends to inboxes without waiting: the next message is on its way before the reply to the last one has come.

For messages that may come twice or with a gap, as tokens do: they carry no nonce, and who sends one again after a bad
reply may overtake himself. Most go as a bare XADD, a quarter of the commands that the script makes; now and then one
goes by the script, which looks whether the stream is full and keeps it from expiring.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from wire import codec
from wire.bus.connection import Server
from wire.bus.line import Command
from wire.bus.options import BusOptions, inbox_ttl_ms
from wire.bus.route import PASSING, Route
from wire.bus.scripts import SEND
from wire.bus.way import Way
from wire.messages import AnyMessage

CHECK_S = 0.25  # a stream may grow past its bound by what comes in this time
MAX_UNANSWERED = 16  # a server that is so far behind is not pressed further


class Courier:
    """The ways of one sender. All its methods run in one event loop."""

    def __init__(self, route: Route, options: BusOptions) -> None:
        self._route = route
        self._timeout_s = options.reply_timeout_s
        self._ways: dict[Server, Way] = {}
        self._checked_at: dict[str, float] = {}

    def may_post(self, stream: str) -> bool:
        """Whether there is a way to a stream, and room on it."""
        way = self._ways.get(self._route.owner(stream))
        return way is not None and way.is_open and way.num_unanswered < MAX_UNANSWERED

    def post(self, stream: str, message: AnyMessage, *, maxlen: int, tell: Callable[[bool], None]) -> None:
        """Send a message where `may_post` holds; `tell` is called later with whether it arrived, and must not raise.

        False: the stream is full, or nothing is known of the message.
        """
        now, raw = time.monotonic(), codec.encode(message)
        command: Command = ("XADD", stream, "*", "m", raw)
        if now - self._checked_at.get(stream, -CHECK_S) >= CHECK_S:
            self._checked_at[stream] = now
            command = ("EVALSHA", SEND.digest, 1, stream, maxlen, inbox_ttl_ms(stream), "", time.time(), raw)

        def told(outcome: list[Any] | RedisConnectionError) -> None:
            reply = outcome[0] if isinstance(outcome, list) else outcome
            arrived = bool(reply) and not isinstance(reply, Exception)
            if not arrived:
                self._checked_at.pop(stream, None)
            tell(arrived)

        self._ways[self._route.owner(stream)].send((command,), told)

    async def prepare(self, stream: str) -> None:
        """Make a way to a stream if there is none; a server that does not answer is left alone."""
        server = self._route.owner(stream)
        way = self._ways.get(server)
        if way is None or not way.is_open:
            try:
                line = await server.dial()
                # A server that does not let us load it has it from the calls of others, or refuses the first message.
                await line.exchange((("SCRIPT", "LOAD", SEND.text),), timeout_s=self._timeout_s)
            except PASSING:
                return
            if way is not None:
                way.close()
            self._ways[server] = Way(line, self._timeout_s)
        if len(self._checked_at) > 1_000:  # edges come and go
            self._checked_at.clear()

    def close(self) -> None:
        """Close all ways."""
        while self._ways:
            self._ways.popitem()[1].close()
