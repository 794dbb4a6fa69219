"""Wakes the one who answers a client: rung for each piece of news, cheap enough for every token of every stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bell:
    """Wakes the one task that waits for news of a request, or of several that share an answer.

    asyncio's Event because it can be cleared: an anyio.Event rings once, and making one for every token of every stream
    was a sixth of the edge's processor time.
    """

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake who waits."""
        self._rung.set()

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is looked at after each ring."""
        while not holds():
            self._rung.clear()
            await self._rung.wait()

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
