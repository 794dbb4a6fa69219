"""How fast blocks come, as far as it can be told from the last fetches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median

_NUM_FETCHES, _FEWEST = 5, 3
_FRESH_S = 60.0


class Pace:
    """The median of the last fetches: one that waited for an engine's first steps, say, does not count.

    What is old does not count either. Slow fetches are not repeated, so nobody would notice that all is well again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rates: deque[tuple[float, float]] = deque(maxlen=_NUM_FETCHES)

    def note(self, num_bytes: int, seconds: float) -> None:
        """Take note of a fetch."""
        self._rates.append((self._clock(), num_bytes / seconds))

    @property
    def bytes_per_s(self) -> float:
        """How fast a fetch is likely to be; 0 if too little is known."""
        fresh = [rate for at, rate in self._rates if self._clock() - at < _FRESH_S]
        return median(fresh) if len(fresh) >= _FEWEST else 0.0
