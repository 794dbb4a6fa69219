"""Wakes the one who answers a client: rung for each piece of news, cheap enough for every token of every stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bell:
    """Wakes the one task that waits for news of a request, or of several that share an answer.

    A bare future a wait: an anyio.Event made for every token of every stream was a sixth of the edge's processor time,
    and asyncio's asks for the loop again and keeps a queue of who waits. And Python wakes a task through all its
    frames; where most news need only a call, `at_once` is called instead, in the same turn of the loop. It says
    whether it has dealt with them; if not, or if it raises, the task wakes to that.
    """

    def __init__(self) -> None:
        self.at_once: Callable[[], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_called = False

    def ring(self) -> None:
        """Wake who waits; who does not will look by himself."""
        if self._waiter is None:
            return
        if self.at_once is None:
            self._wake()
        elif not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._call)

    def _call(self) -> None:
        self._is_called = False
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        try:
            is_done = self.at_once is not None and self.at_once()
        except Exception as error:
            self._waiter = None
            waiter.set_exception(error)
            return
        if not is_done:
            self._wake()

    def _wake(self) -> None:
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
