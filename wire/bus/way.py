"""A line that all callers of a process share: what they say in one turn of the loop goes out in one write.

Replies come in the order of the commands, so a caller who was cancelled leaves a reply that meets nobody, and the next
caller gets his own. Who shares a line may not block on the server, or he blocks all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from wire.bus.line import Command, Letter, Line, Told, answer_to, pack, pack_silent


class Way:
    """A line to one server, and what it still owes us. Silent for too long while it owes something, it is lost."""

    def __init__(self, line: Line, timeout_s: float) -> None:
        self.num_unanswered = 0
        self.num_silent = 0  # of these, commands that will have no reply of their own
        self._line = line
        self._timeout_s = timeout_s
        self._heard_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._said: list[tuple[Letter, Told]] = []  # in this turn of the loop, not sent yet

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._line.is_open

    def send(self, commands: Sequence[Command], tell: Told) -> None:
        """Send commands at once; `tell` gets their replies, or why none come. The line must be open."""
        letter = pack(commands)
        self._line.send(letter, self._owed(tell))

    def send_silently(self, command: Command, tell: Told) -> None:
        """Send a command without a reply at once; see `pack_silent`."""
        letter = pack_silent(command)
        self.num_silent += 1

        def told(outcome: list[Any] | RedisConnectionError) -> None:
            self.num_silent -= 1
            tell(outcome)

        self._line.send(letter, self._owed(told))

    def ask(self) -> None:
        """Have the server say how far it is, if it is not about to."""
        if self.is_open and 0 < self.num_silent == self.num_unanswered:
            self._heard_at = time.monotonic()
            self.send((("PING",),), lambda _outcome: None)

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands with what others say in this turn of the loop, and return their replies.

        An error reply stands in its place. Raises redis-py's ConnectionError when the line is lost, silent for too
        long, or refused by the server.
        """
        letter = pack(commands)
        return await answer_to(lambda tell: self._join(letter, tell))

    def _join(self, letter: Letter, tell: Told) -> None:
        if not self._said:
            self._loop.call_soon(self._flush)
        self._said.append((letter, self._owed(tell)))

    def _flush(self) -> None:
        said, self._said = self._said, []
        if self.is_open:
            self._line.send_all(said)
            return
        for _, tell in said:
            tell(RedisConnectionError("the line was lost before anything was sent"))

    def _owed(self, tell: Told) -> Told:
        """Count an answer that is to come, and begin to watch for it."""
        if not self.num_unanswered:
            self._heard_at = time.monotonic()
        self.num_unanswered += 1
        if self._watch is None:  # one timer for all that is under way
            self._watch = self._loop.call_later(self._timeout_s, self._look)

        def told(outcome: list[Any] | RedisConnectionError) -> None:
            self.num_unanswered -= 1
            self._heard_at = time.monotonic()
            tell(outcome)

        return told

    def close(self) -> None:
        """Close the line; what is unanswered is told."""
        if self._watch is not None:
            self._watch.cancel()
        self._line.close()

    def _look(self) -> None:
        self._watch = None
        if not self.num_unanswered:
            return
        if self.num_silent == self.num_unanswered:  # silence that was ordered says nothing
            self.ask()
            return
        left_s = self._heard_at + self._timeout_s - time.monotonic()
        if left_s <= 0:
            self._line.close()
        else:
            self._watch = self._loop.call_later(left_s, self._look)
