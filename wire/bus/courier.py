"""Sends to inboxes without waiting: the next message is on its way before the reply to the last one has come.

For messages that may come twice or with a gap, as tokens do: they carry no nonce, and who sends one again after a bad
reply may overtake himself. Most go as a bare XADD, a quarter of the commands that the script makes; now and then one
goes by the script, which looks whether the stream is full and keeps it from expiring. Who need not know at once has
seven of eight replies left out: hearing one wakes the process, which costs as much as all else that it does for a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from wire import codec
from wire.bus.connection import Server
from wire.bus.line import Command, Told
from wire.bus.options import BusOptions, inbox_ttl_ms
from wire.bus.route import PASSING, Route
from wire.bus.scripts import SEND
from wire.bus.way import Way
from wire.messages import AnyMessage

CHECK_S = 0.25  # a stream may grow past its bound by what comes in this time
MAX_UNANSWERED = 16  # a server that is so far behind is not pressed further
MAX_SILENT = 7  # messages in a row without a reply


class Courier:
    """The ways of one sender. All its methods run in one event loop."""

    def __init__(self, route: Route, options: BusOptions) -> None:
        self._route = route
        self._timeout_s = options.reply_timeout_s
        self._ways: dict[Server, Way] = {}
        self._talkative: set[Way] = set()  # their servers always reply
        self._checked_at: dict[str, float] = {}

    def may_post(self, stream: str) -> bool:
        """Whether there is a way to a stream, and room on it."""
        way = self._ways.get(self._route.owner(stream))
        return way is not None and way.is_open and way.num_unanswered < MAX_UNANSWERED

    def post(
        self, stream: str, message: AnyMessage, *, maxlen: int, tell: Callable[[bool], None], patient: bool = False
    ) -> None:
        """Send a message where `may_post` holds; `tell` is called later with whether it arrived, and must not raise.

        False: the stream is full, or nothing is known of the message. `patient`: `tell` may come with that of a later
        message, or after `ask`; a server's refusal may then count as an arrival.
        """
        now, raw = time.monotonic(), codec.encode(message)
        way = self._ways[self._route.owner(stream)]
        if now - self._checked_at.get(stream, -CHECK_S) >= CHECK_S:
            self._checked_at[stream] = now
            script: Command = ("EVALSHA", SEND.digest, 1, stream, maxlen, inbox_ttl_ms(stream), "", time.time(), raw)
            way.send((script,), self._hearer(stream, tell))
            return
        command: Command = ("XADD", stream, "*", "m", raw)
        if patient and way.num_silent < MAX_SILENT and way not in self._talkative:
            way.send_silently(command, lambda outcome: tell(isinstance(outcome, list)))
        else:
            way.send((command,), self._hearer(stream, tell))

    def _hearer(self, stream: str, tell: Callable[[bool], None]) -> Told:
        def told(outcome: list[Any] | RedisConnectionError) -> None:
            reply = outcome[0] if isinstance(outcome, list) else outcome
            arrived = bool(reply) and not isinstance(reply, Exception)
            if not arrived:
                self._checked_at.pop(stream, None)
            tell(arrived)

        return told

    def ask(self, stream: str) -> None:
        """Hear soon what became of all that went to a stream."""
        way = self._ways.get(self._route.owner(stream))
        if way is not None:
            way.ask()

    async def prepare(self, stream: str) -> None:
        """Make a way to a stream if there is none; a server that does not answer is left alone."""
        server = self._route.owner(stream)
        way = self._ways.get(server)
        if way is None or not way.is_open:
            try:
                line = await server.dial()
            except PASSING:
                return
            # A server that does not let us load it has it from the calls of others, or refuses the first message.
            first: Command = ("SCRIPT", "LOAD", SEND.text)
            try:
                replies = await line.exchange((first, ("CLIENT", "REPLY", "ON")), timeout_s=self._timeout_s)
            except BaseException as error:  # cancelled, too
                line.close()
                if isinstance(error, PASSING):
                    return
                raise
            if way is not None:
                way.close()
                self._talkative.discard(way)
            self._ways[server] = Way(line, self._timeout_s)
            if isinstance(replies[1], Exception):  # not allowed
                self._talkative.add(self._ways[server])
            self._close_old_ways()
        if len(self._checked_at) > 1_000:  # edges come and go
            self._checked_at.clear()

    def _close_old_ways(self) -> None:
        """Close the ways to servers of a cluster that hold nothing of ours any more: streams have other owners now."""
        for server in self._ways.keys() - set(self._route.servers):
            way = self._ways.pop(server)
            self._talkative.discard(way)
            way.close()

    def close(self) -> None:
        """Close all ways."""
        while self._ways:
            self._ways.popitem()[1].close()
