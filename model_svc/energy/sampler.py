"""Reads a meter at its own pace, in a thread: what takes milliseconds is on no step's way."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from model_svc.energy.meter import Meter, Reading

log = logging.getLogger(__name__)

EVERY_S = 0.1  # cards count no faster
_LAST_S = 2.0
_KEPT = 3  # the first two behind the end of work, and the newest: between them lies nothing but rest


class Sampler:
    """The newest readings of a meter, for the engine to take between two steps."""

    def __init__(self, meter: Meter, clock: Callable[[], float] = time.perf_counter) -> None:
        self._meter = meter
        self._clock = clock
        self._readings: list[Reading] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.failed = False  # the meter can no longer be read
        self.read()
        self._thread = threading.Thread(target=self._run, name="energy", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def take(self) -> list[Reading]:
        """Return the readings since the last call, oldest first; of many the first two and the last."""
        if not self._readings:
            return []
        with self._lock:
            taken, self._readings = self._readings, []
        return taken

    def close(self) -> None:
        """Read no more."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join(_LAST_S)
        if not self._thread.is_alive():  # else a driver hangs, and this process ends without a word to it
            self._meter.close()

    def _run(self) -> None:
        while not self.failed and not self._closed.wait(EVERY_S):
            self.read()

    def read(self) -> None:
        """Read once, in the caller's time."""
        try:
            reading = Reading(self._meter.joules(), self._clock())
        except OSError as error:
            log.warning("energy is not metered any more: %s", error)
            self.failed = True
            return
        with self._lock:
            if len(self._readings) == _KEPT:
                self._readings.pop()
            self._readings.append(reading)
