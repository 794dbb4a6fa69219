"""When a step leaves a core idle: behind its products, while one thread draws, commits and plans.

With as many threads as cores, whatever else wakes in the middle of a step takes a core from it, and the other threads
wait for the one that lost it. So what may wait for a moment (tokens on their way to their clients) waits until a core
is idle anyway. Only for a short moment: steps that take long are worth no delay.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

SOON_S = 0.05


class SpareTime:
    """Tells of idle cores. Whoever has something to do then sets `use`, which is called once a step, maybe for nothing.

    `num_threads` is how many the step computes on; with cores to spare for others nothing need wait.
    """

    def __init__(
        self, num_threads: int, num_cores: int | None = None, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.use: Callable[[], None] = _nothing
        self._all_compute = num_threads >= (num_cores or logical_cores())
        self._took_s = SOON_S
        self._clock = clock

    @property
    def is_soon(self) -> bool:
        """Whether it is worth to wait for the next step's spare time, if that step is like the last one."""
        return self.num_within(SOON_S) > 0

    def num_within(self, seconds: float) -> int:
        """Return how many steps like the last one take so long all in all, if it is worth to wait for any."""
        return int(seconds / max(self._took_s, 1e-4)) if self._all_compute and self._took_s < SOON_S else 0

    def behind(self, compute: Callable[[], None]) -> None:
        """Compute on all threads, then give away the time behind it."""
        began = self._clock()
        compute()
        self._took_s = self._clock() - began
        self.use()

    def now(self) -> None:
        """Give away the time before something that takes long or is not known."""
        self._took_s = SOON_S
        self.use()


@runtime_checkable
class HasSpareTime(Protocol):
    """A runner whose steps tell when a core is idle."""

    spare: SpareTime


def logical_cores() -> int:
    """Return how many cores this process may run on, hyper-threads counted."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _nothing() -> None:
    pass
