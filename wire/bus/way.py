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

from wire.bus.line import Command, Line, Told, answer_to


class Way:
    """A line to one server, and what it still owes us. Silent for too long while it owes something, it is lost."""

    def __init__(self, line: Line, timeout_s: float) -> None:
        self.num_unanswered = 0
        self._line = line
        self._timeout_s = timeout_s
        self._heard_at = 0.0
        self._watch: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._line.is_open

    def send(self, commands: Sequence[Command], tell: Told) -> None:
        """Send commands; `tell` gets their replies, or why none come. The line must be open."""
        if not self.num_unanswered:
            self._heard_at = time.monotonic()
        self.num_unanswered += 1

        def told(outcome: list[Any] | RedisConnectionError) -> None:
            self.num_unanswered -= 1
            self._heard_at = time.monotonic()
            tell(outcome)

        self._line.send(commands, told)
        if self._watch is None:  # one timer for all that is under way
            self._watch = asyncio.get_running_loop().call_later(self._timeout_s, self._look)

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands and return their replies; an error reply stands in its place.

        Raises redis-py's ConnectionError when the line is lost, silent for too long, or refused by the server.
        """
        if not self.is_open:
            raise RedisConnectionError("the line was lost meanwhile")
        return await answer_to(lambda tell: self.send(commands, tell))

    def close(self) -> None:
        """Close the line; what is unanswered is told."""
        if self._watch is not None:
            self._watch.cancel()
        self._line.close()

    def _look(self) -> None:
        self._watch = None
        if not self.num_unanswered:
            return
        left_s = self._heard_at + self._timeout_s - time.monotonic()
        if left_s <= 0:
            self._line.close()
        else:
            self._watch = asyncio.get_running_loop().call_later(left_s, self._look)
