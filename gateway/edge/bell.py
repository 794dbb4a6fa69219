"""Wakes the one who answers a client: rung for each piece of news, cheap enough for every token of every stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bell:
    """Wakes the one task that waits for news of a request, or of several that share an answer.

    A bare future a wait: an anyio.Event made for every token of every stream was a sixth of the edge's processor time,
    and asyncio's asks for the loop again and keeps a queue of who waits.
    """

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake who waits."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():  # who waited may have been cancelled
            waiter.set_result(None)

    def next_ring(self) -> asyncio.Future[None]:
        """Return what is done at the next ring. To be awaited at once: what rang before is not heard."""
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is looked at after each ring."""
        while not holds():
            await self.next_ring()

    async def wait_for(self, timeout_s: float, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds, or until the time is up; a bare timer, as every request waits so once."""
        is_late = False

        def be_late() -> None:
            nonlocal is_late
            is_late = True
            self.ring()

        timer = asyncio.get_running_loop().call_later(timeout_s, be_late)
        try:
            await self.wait_until(lambda: is_late or holds())
        finally:
            timer.cancel()
