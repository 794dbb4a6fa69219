"""What all parts of the bus share: the route to the servers, the limits, and counts of what has gone wrong."""

from __future__ import annotations

import os

import msgspec

from wire.bus.options import BusOptions
from wire.bus.route import Route


class Counts(msgspec.Struct):
    """What went wrong on this bus since it was opened; services export it as metrics."""

    num_lost: int = 0
    num_malformed: int = 0
    num_dead_letters: int = 0
    num_failures_dropped: int = 0


class Core:
    """Shared state of a Bus. `route` is open to desks that keep keys of their own."""

    def __init__(self, route: Route, options: BusOptions) -> None:
        self.route = route
        self.options = options
        self.counts = Counts()
        self._name = os.urandom(6).hex()
        self._sent = 0

    def _nonce(self) -> str:
        """Name one message, so that a repeat of it can be told from another one like it."""
        self._sent += 1
        return f"{self._name}{self._sent:x}"
