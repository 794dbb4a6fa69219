"""How many pictures the open requests of a replica may have: their tiles stay in memory until their requests end."""

from __future__ import annotations

import anyio


class Room:
    """Room for `size` pictures, given in the order of asking, so that many wait no longer than few."""

    def __init__(self, size: int) -> None:
        self._size = self._left = size
        self._turn = anyio.Lock()
        self._freed = anyio.Event()

    async def take(self, count: int) -> int:
        """Wait for room for so many pictures; returns for how many it was taken. More than fit get all there is."""
        count = min(count, self._size)
        async with self._turn:
            while count > self._left:
                await self._freed.wait()
            self._left -= count
        return count

    def let_go(self, count: int) -> None:
        """Give back what `take` has returned."""
        self._left += count
        freed, self._freed = self._freed, anyio.Event()
        freed.set()
