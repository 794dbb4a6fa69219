"""The kernel's counters, in a folder as Linux has it: what is added up, what is left out, and where they begin anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_svc.energy.meter import meter_of
from model_svc.energy.rapl import RaplMeter

END = 262_143_328_850


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages with their cores and one with memory beside it, and the platform's sum of all."""
    (tmp_path / "intel-rapl").mkdir()  # the control type itself: no zone
    for zone, name in (
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "package-1"),
        ("intel-rapl:2", "psys"),
        ("intel-rapl-mmio:0", "package-0"),
    ):
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "name").write_text(name + "\n")
        (tmp_path / zone / "max_energy_range_uj").write_text(f"{END}\n")
        put(tmp_path, zone, 1_000_000)
    return tmp_path


def put(folder: Path, zone: str, microjoules: int) -> None:
    (folder / zone / "energy_uj").write_text(f"{microjoules}\n")


def test_packages_and_memory_beside_them_are_added_up_and_nothing_is_counted_twice(powercap: Path) -> None:
    meter = meter_of("cpu", (), powercap)
    assert isinstance(meter, RaplMeter) and meter.joules() == 0.0
    for zone, joules in (("0", 3), ("0:0", 2), ("0:1", 5), ("1", 7), ("2", 400)):
        put(powercap, f"intel-rapl:{zone}", (1 + joules) * 1_000_000)
    put(powercap, "intel-rapl-mmio:0", 90_000_000)
    assert meter.joules() == 15.0
    assert meter.joules() == 15.0


def test_a_counter_that_comes_to_its_end_goes_on_from_zero(powercap: Path) -> None:
    put(powercap, "intel-rapl:1", END - 2_000_000)
    meter = RaplMeter.open(powercap)
    assert meter is not None
    put(powercap, "intel-rapl:1", 3_000_000)
    assert meter.joules() == 5.0
    put(powercap, "intel-rapl:1", 4_000_000)
    assert meter.joules() == 6.0


def test_unreadable_counters_are_no_meter(powercap: Path) -> None:
    file = powercap / "intel-rapl:0" / "energy_uj"
    file.unlink()
    file.mkdir()  # reading it fails, whoever we are
    assert meter_of("cpu", (), powercap) is None
    file.rmdir()
    file.write_text("no number")
    assert meter_of("cpu", (), powercap) is None


def test_a_machine_without_counters_has_no_meter(tmp_path: Path) -> None:
    assert meter_of("cpu", (), tmp_path) is None
    assert meter_of("cpu", (), tmp_path / "missing") is None
    assert meter_of("scripted", (), tmp_path) is None


def test_a_counter_that_goes_away_is_an_error_that_can_be_caught(powercap: Path) -> None:
    meter = RaplMeter.open(powercap)
    assert meter is not None
    (powercap / "intel-rapl:1" / "energy_uj").write_text("")
    with pytest.raises(OSError, match="RAPL"):
        meter.joules()
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    with pytest.raises(OSError, match="energy_uj"):
        meter.joules()
