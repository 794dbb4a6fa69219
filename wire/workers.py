"""The tasks of a desk, which work off what its readers have read, and how much more they would take.

They stay: a task for each job would cost half of what a desk does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio
from anyio.abc import TaskGroup

from wire.bus import Consumer, Delivery


class Workers:
    """At most `concurrency` tasks in `tasks` that `work` on one delivery at a time."""

    def __init__(
        self, tasks: TaskGroup, concurrency: int, work: Callable[[Consumer, Delivery], Awaitable[None]]
    ) -> None:
        self._tasks = tasks
        self._concurrency = concurrency
        self._work = work
        self._queue: deque[tuple[Consumer, Delivery]] = deque()
        self._num_held = 0  # not yet done; with several streams it may pass the limit for a moment
        self._num_workers = 0
        self._idle: list[asyncio.Event] = []  # of workers that wait for a delivery
        self._freed: anyio.Event | None = None  # there if a reader waits for room

    @property
    def num_free(self) -> int:
        """Return how many more deliveries there is room for."""
        return self._concurrency - self._num_held

    @property
    def are_idle(self) -> bool:
        """Tell whether nothing waits and nothing is worked on."""
        return not self._num_held

    @property
    def would_start(self) -> bool:
        """Tell whether one more would be worked on at once, overtaking nobody."""
        return self.num_free >= 1 and not self._queue

    async def wait_for_room(self) -> None:
        """Wait until one more may be read."""
        while self.num_free < 1:
            self._freed = self._freed or anyio.Event()
            await self._freed.wait()

    def accept(self, reader: Consumer, delivery: Delivery) -> None:
        """Take a delivery. Does not wait."""
        self._num_held += 1
        self._queue.append((reader, delivery))
        if self._idle:
            self._idle.pop().set()
        elif self._num_workers < self._concurrency:
            self._num_workers += 1
            self._tasks.start_soon(self._work_forever)

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """Take room for one while the block does the work itself."""
        self._num_held += 1
        try:
            yield
        finally:
            self._make_room()

    async def _work_forever(self) -> None:
        woken = asyncio.Event()
        while True:
            while self._queue:
                try:
                    await self._work(*self._queue.popleft())
                finally:
                    self._make_room()
            woken.clear()
            self._idle.append(woken)
            await woken.wait()

    def _make_room(self) -> None:
        self._num_held -= 1
        if self._freed is not None:
            self._freed.set()
            self._freed = None
