"""NVIDIA's counters: added up over the cards, and no meter where the library, the driver or a card has none."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from model_svc.energy.meter import meter_of
from model_svc.energy.nvml import NvmlMeter


class Nvml(ModuleType):
    """The part of pynvml that is used, over cards that play back their counters (mJ); None: it has no counter."""

    class NVMLError(Exception):
        pass

    def __init__(self, **cards: int | None) -> None:
        super().__init__("pynvml")
        self.cards = cards
        self.num_users = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.num_users += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.num_users -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid.removeprefix("GPU-") not in self.cards:
            raise self.NVMLError("Not Found")
        return uuid.removeprefix("GPU-")

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        assert self.num_users == 1
        counted = self.cards[handle]
        if counted is None:
            raise self.NVMLError("Not Supported")
        return counted


def test_the_cards_of_all_ranks_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(a=1500, b=2250, c=9_000_000)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    meter = meter_of("NVIDIA H200", ("GPU-a", "GPU-b"))
    assert meter is not None and meter.joules() == 3.75
    nvml.cards["b"] = 3000
    assert meter.joules() == 4.5
    meter.close()
    assert nvml.num_users == 0


@pytest.mark.parametrize("cards", [{}, {"a": 5}, {"a": 5, "b": None}], ids=["none", "one is missing", "one is old"])
def test_cards_without_a_counter_are_no_meter(cards: dict[str, int | None], monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(**cards)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert NvmlMeter.open(("GPU-a", "GPU-b")) is None
    assert nvml.num_users == 0


def test_a_card_that_falls_off_the_bus_is_an_error_that_can_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(a=5)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    meter = NvmlMeter.open(("GPU-a",))
    assert meter is not None
    nvml.cards["a"] = None
    with pytest.raises(OSError, match="Not Supported"):
        meter.joules()


def test_without_the_library_there_is_no_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # so its import fails, also where it is installed
    assert meter_of("NVIDIA H200", ("GPU-a",)) is None


def test_the_real_library_without_a_driver_or_such_a_card_is_no_meter() -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is part of the extra `cuda`", exc_type=ImportError)
    assert meter_of("NVIDIA H200", ("GPU-00000000-0000-0000-0000-000000000000",)) is None
