"""Tests of different lanes run beside each other, never two that start houses; no process knows tests of others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.lanes import _FOLDERS, lane_of, lanes_in

ROOT = Path(__file__).resolve().parent.parent

CONFTEST = """
from tests.lanes import keep_own, pytest_configure_node, pytest_ignore_collect, pytest_xdist_make_scheduler

def pytest_collection_modifyitems(items, config):
    keep_own(items, config)
"""
NOTES = """
import os, pathlib

def note(kind):
    with pathlib.Path(kind).open("a") as file:
        print(__file__, os.environ["PYTEST_XDIST_WORKER"], file=file)
"""
WHO = f"""{NOTES}
note("imported")

def test_one():
    note("ran")

test_two = test_one
test_three = test_one
"""
DIES = WHO.replace("test_two = test_one", "def test_two():\n    os._exit(3)\n")


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name in ("kernels", "gateway/edge", "browser", "e2e", "model_svc/runner"):
        (folder / "tests" / name).mkdir(parents=True)
        (folder / "tests" / name / f"test_in_{name[:4]}.py").write_text(WHO)
    (folder / "tests" / "browser" / "conftest.py").write_text(f"{NOTES}\nnote('imported')\n")
    (folder / "tests" / "gateway" / "edge" / "test_in_gate.py").write_text(DIES)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "3", "-p", "no:cacheprovider", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def noted(path: Path) -> list[tuple[str, str]]:
    return re.findall(r"(test_in_\w+|conftest)\.py (gw\d)", path.read_text())


def test_each_folder_of_a_lane_is_there() -> None:
    folders = [ROOT / "tests" / folder for lane in _FOLDERS.values() for folder in lane]
    assert [folder for folder in folders if not folder.is_dir()] == []
    assert lane_of("tests/kernels/test_sample.py::test_x") == lane_of("tests/model_svc/runner/test_x.py::test_x")
    assert lane_of("tests/gateway/edge/test_x.py::test_x") == lane_of("tests/model_svc/test_service.py::test_x")
    assert lane_of("tests/e2e/test_kernel_forms.py::test_x") == lane_of("tests/browser/test_x.py::test_x")
    assert lanes_in("tests") == {"computes", "serves", "lives"}
    assert lanes_in("tests/model_svc") == {"computes", "serves"}
    assert lanes_in("tests/model_svc/runner") == {"computes"} and lanes_in("tests/browser") == {"lives"}


def test_a_lane_stays_in_one_process_and_in_order_and_goes_on_when_that_dies(tmp_path: Path) -> None:
    code, said = run(tmp_path)
    assert code == 1 and "1 failed, 14 passed" in said and "tests/gateway/edge/test_in_gate.py::test_two" in said, said
    ran, imported = noted(tmp_path / "ran"), noted(tmp_path / "imported")
    computes, lives = ({who for name, who in ran if name == f"test_in_{lane}"} for lane in ("kern", "e2e"))
    assert len(computes) == len(lives) == 1 and computes != lives
    assert [name for name, who in ran if who in lives] == ["test_in_brow"] * 3 + ["test_in_e2e"] * 3
    assert sorted(name for name, who in ran if who in computes) == ["test_in_kern"] * 3 + ["test_in_mode"] * 3
    assert len({who for name, who in ran if name == "test_in_gate"} - computes - lives) == 2
    assert {name for name, who in imported if who in lives} == {"conftest", "test_in_brow", "test_in_e2e"}
    assert {name for name, who in imported if who in computes} == {"test_in_kern", "test_in_mode"}


def test_tests_that_the_command_names_run_once(tmp_path: Path) -> None:
    code, said = run(tmp_path, "tests/kernels/test_in_kern.py::test_two", "tests/e2e")
    assert code == 0 and "4 passed" in said, said
    ran = noted(tmp_path / "ran")
    assert sorted(name for name, _ in ran) == ["test_in_e2e"] * 3 + ["test_in_kern"]
    assert len({who for _, who in ran}) == 2
