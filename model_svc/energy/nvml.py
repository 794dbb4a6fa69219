"""The energy of NVIDIA cards, from NVML's counter (Volta and newer; not of a part of a card)."""

from __future__ import annotations

import importlib
import logging
from typing import Any

log = logging.getLogger(__name__)


class NvmlMeter:
    """Adds up the counters of some cards. A reading takes a millisecond or so; the counters move every 20 to 100 ms."""

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        self._nvml = nvml
        self._handles = handles

    @classmethod
    def open(cls, cards: tuple[str, ...]) -> NvmlMeter | None:
        """Return the meter of cards with these UUIDs; None where the library, the driver or a card has none."""
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            log.info("energy is not metered: pip install 'headrace[cuda]'")
            return None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            log.info("energy is not metered: %s", error)
            return None
        try:
            meter = cls(nvml, [nvml.nvmlDeviceGetHandleByUUID(card) for card in cards])
            meter.joules()
        except (nvml.NVMLError, OSError) as error:
            log.info("energy is not metered: %s", error)
            nvml.nvmlShutdown()
            return None
        return meter

    def joules(self) -> float:
        """Return what the cards have used. Raises OSError."""
        try:
            counted = [int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) for handle in self._handles]
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error
        return sum(counted) / 1e3

    def close(self) -> None:
        """Let go of the library."""
        self._nvml.nvmlShutdown()
