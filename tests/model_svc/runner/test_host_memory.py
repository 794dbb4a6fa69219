"""How much memory a process may take: the machine's, or what its control groups leave."""

from pathlib import Path

import psutil
import pytest

from model_svc.runner.host_memory import available_bytes

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _roomy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()._replace(available=1 << 40)
    monkeypatch.setattr("model_svc.runner.host_memory.psutil.virtual_memory", lambda: memory)


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_container_of_version_2_limits_us_less_what_it_holds_and_cannot_give_back(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/"
    files = {
        group + "memory.max": f"{512 * MIB}\n",
        group + "memory.current": f"{300 * MIB}\n",
        group + "memory.stat": f"anon {200 * MIB}\ninactive_file {100 * MIB}\n",
    }
    assert available_bytes(machine(tmp_path, "0::/docker/abc\n", files)) == 312 * MIB


def test_the_tightest_of_the_groups_above_us_counts(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/user/"
    files = {
        group + "shell/memory.max": "max\n",
        group + "shell/memory.current": "1\n",
        group + "memory.max": f"{64 * MIB}\n",
        group + "memory.current": f"{MIB}\n",
    }
    assert available_bytes(machine(tmp_path, "0::/user/shell\n", files)) == 63 * MIB


def test_version_1_is_read_where_its_controller_is_mounted(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/pod/"
    files = {
        group + "memory.limit_in_bytes": f"{100 * MIB}\n",
        group + "memory.usage_in_bytes": f"{120 * MIB}\n",
    }
    assert available_bytes(machine(tmp_path, "5:cpu:/x\n4:hugetlb,memory:/pod\n0::/\n", files)) == 0


def test_without_control_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) == 1 << 40
