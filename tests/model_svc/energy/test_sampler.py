"""The thread that reads: the newest readings, and those that tell work from rest; a meter that fails ends nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

from model_svc.energy.meter import Reading
from model_svc.energy.sampler import Sampler


class Playback:
    """Plays a counter back; behind its last value it cannot be read."""

    def __init__(self, *joules: float) -> None:
        self._left = list(joules)
        self.closed = False

    def joules(self) -> float:
        if not self._left:
            raise OSError("the tape has ended")
        return self._left.pop(0)

    def close(self) -> None:
        self.closed = True


def clock() -> Callable[[], float]:
    ticks = count()
    return lambda: float(next(ticks))


def test_of_many_readings_the_first_two_and_the_last_are_kept() -> None:
    sampler = Sampler(Playback(1.0, 2.0, 3.0, 4.0, 5.0, 6.0), clock())
    for _ in range(4):
        sampler.read()
    assert sampler.take() == [Reading(1.0, 0.0), Reading(2.0, 1.0), Reading(5.0, 4.0)]
    assert sampler.take() == []
    sampler.read()
    assert sampler.take() == [Reading(6.0, 5.0)]
    assert not sampler.failed


def test_a_meter_that_cannot_be_read_any_more_ends_the_readings() -> None:
    meter = Playback(1.0, 2.0)
    sampler = Sampler(meter, clock())
    sampler.start()
    until = time.monotonic() + 60
    while not sampler.failed and time.monotonic() < until:
        time.sleep(0.01)
    assert sampler.failed
    assert sampler.take() == [Reading(1.0, 0.0), Reading(2.0, 1.0)]
    sampler.close()
    assert meter.closed


def test_it_reads_by_itself_until_it_is_closed() -> None:
    meter = Playback(*map(float, range(10_000)))
    sampler = Sampler(meter)
    sampler.start()
    found: list[Reading] = []
    until = time.monotonic() + 60
    while len(found) < 3 and time.monotonic() < until:
        found += sampler.take()
        time.sleep(0.01)
    sampler.close()
    assert [reading.joules for reading in found[:3]] == [0.0, 1.0, 2.0]
    assert sorted(reading.at for reading in found) == [reading.at for reading in found]
