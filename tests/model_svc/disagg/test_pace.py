"""One slow fetch, or slow ones long ago, do not keep a replica from fetching."""

from __future__ import annotations

from model_svc.disagg.pace import Pace


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_fetch_that_waited_for_something_else_does_not_count() -> None:
    pace = Pace(Clock())
    pace.note(1000, 10.0)
    pace.note(1000, 1.0)
    assert pace.bytes_per_s == 0  # too few to tell which of them is the rule
    pace.note(1000, 0.5)
    assert pace.bytes_per_s == 1000


def test_slow_fetches_are_forgotten_as_nobody_repeats_them() -> None:
    clock = Clock()
    pace = Pace(clock)
    for _ in range(5):
        pace.note(1, 1.0)
    assert pace.bytes_per_s == 1
    clock.now = 61.0
    assert pace.bytes_per_s == 0
