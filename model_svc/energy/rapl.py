"""The energy of a machine's processors and their memory, from the kernel's counters (RAPL; Linux on Intel and AMD)."""

from __future__ import annotations

import logging
from pathlib import Path

log = logging.getLogger(__name__)


class RaplMeter:
    """Adds up the counters of packages and of memory beside them, each of which begins anew at its end.

    `psys` has the packages in it, as a package has its cores: they are left out.
    """

    FOLDER = Path("/sys/class/powercap")

    def __init__(self, zones: list[Path]) -> None:
        self._counters = [_Counter(zone) for zone in zones]

    @classmethod
    def open(cls, folder: Path = FOLDER) -> RaplMeter | None:
        """Return the meter of this machine; None if it has no such counters, or not one that we may read."""
        try:
            zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if _counts(zone)]
            return cls(zones) if zones else None
        except (OSError, ValueError) as error:
            log.info("energy is not metered: %s", error)
            return None

    def joules(self) -> float:
        """Return what was used since the meter was opened. Raises OSError."""
        try:
            return sum(counter.joules() for counter in self._counters)
        except ValueError as error:
            raise OSError(f"RAPL: {error}") from error

    def close(self) -> None:
        """Do nothing: no file is held open."""


class _Counter:
    """One zone's counter, in microjoules, which ends at `max_energy_range_uj`."""

    def __init__(self, zone: Path) -> None:
        self._file = zone / "energy_uj"
        self._end = _number(zone / "max_energy_range_uj")
        self._last = _number(self._file)
        self._used = 0

    def joules(self) -> float:
        now = _number(self._file)
        self._used += now - self._last + (self._end if now < self._last else 0)
        self._last = now
        return self._used / 1e6


def _counts(zone: Path) -> bool:
    """Whether a zone's energy is in no other's. The folder has subzones (intel-rapl:0:1) beside their packages."""
    name = (zone / "name").read_text().strip()
    return name.startswith("package") or name == "dram"


def _number(file: Path) -> int:
    return int(file.read_text())
