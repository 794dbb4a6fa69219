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

    @property
    def is_open(self) -> bool:
        """Tell whether one more would be admitted."""
        return not self.draining and self.inflight < self.max_inflight

    def check_wait(self, wait_s: float, limit_s: float) -> None:
        """Refuse at once what could not begin in time. Raises OverloadedError with the time to come back."""
        if wait_s > limit_s:
            self.refused += 1
            message = f"{wait_s:.0f} s of work are waiting; a request may wait {limit_s:g} s."
            raise OverloadedError(message, retry_after_s=min(wait_s - limit_s + 1.0, 60.0))

    @contextmanager
    def slot(self, count: int = 1) -> Iterator[None]:
        """Hold a slot, or several. Raises OverloadedError when too few are free, UnavailableError while draining."""
        if self.draining:
            self.refused += 1
            raise UnavailableError("This server is shutting down.", retry_after_s=1)
        if self.inflight + count > self.max_inflight:
            self.refused += 1
            raise OverloadedError(
                f"{self.inflight} of {self.max_inflight} request slots are in use.", retry_after_s=self.retry_after_s
            )
        self.inflight += count
        started = monotonic()
        try:
            yield
        finally:
            self.inflight -= count
            self._mean_s += _SMOOTHING * (monotonic() - started - self._mean_s)
