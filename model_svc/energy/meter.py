"""A counter of energy: what a replica's devices have used since some time in the past."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple, Protocol

from model_svc.energy.nvml import NvmlMeter
from model_svc.energy.rapl import RaplMeter

log = logging.getLogger(__name__)


class Reading(NamedTuple):
    """What the counter said, and when by `time.perf_counter`, in seconds."""

    joules: float
    at: float


class Meter(Protocol):
    """Counts what a replica's devices use, all of them together."""

    def joules(self) -> float:
        """Return the counter; it never goes back. May take milliseconds. Raises OSError when it cannot be read."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


def meter_of(device: str, cards: tuple[str, ...], powercap: Path = RaplMeter.FOLDER) -> Meter | None:
    """Return what counts the energy of these cards (UUIDs), of this machine's processors on a CPU, or None."""
    found: Meter | None = None
    if cards:
        found = NvmlMeter.open(cards)
    elif device == "cpu":
        found = RaplMeter.open(powercap)
    log.info("energy is %s", f"read by {type(found).__name__}" if found is not None else "not metered here")
    return found
