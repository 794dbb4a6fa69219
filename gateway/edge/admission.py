"""Admission: a bounded number of requests in flight; one more is refused at once, with a time to come back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from wire.errors import OverloadedError, UnavailableError

_SMOOTHING = 0.2  # weight of the newest duration in the running mean that Retry-After is made of


class Admission:
    """Counts the requests in flight. `draining` refuses new ones while open streams finish."""

    def __init__(self, max_inflight: int) -> None:
        self.max_inflight = max_inflight
        self.inflight = 0
        self.refused = 0
        self.draining = False
        self._mean_s = 1.0

    @property
    def retry_after_s(self) -> float:
        """Return when a slot should be free: the mean duration spread over the slots, 1 to 30 s."""
        return min(max(self._mean_s / self.max_inflight, 1.0), 30.0)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a slot. Raises OverloadedError when all are taken, UnavailableError while draining."""
        if self.draining:
            self.refused += 1
            raise UnavailableError("This server is shutting down.", retry_after_s=1)
        if self.inflight >= self.max_inflight:
            self.refused += 1
            raise OverloadedError(
                f"All {self.max_inflight} request slots are in use.", retry_after_s=self.retry_after_s
            )
        self.inflight += 1
        started = monotonic()
        try:
            yield
        finally:
            self.inflight -= 1
            self._mean_s += _SMOOTHING * (monotonic() - started - self._mean_s)
