"""Tests of different lanes run beside each other, never two that start houses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.lanes import _FOLDERS, lane_of

ROOT = Path(__file__).resolve().parent.parent

WHO = """
import os, pathlib

def test_one():
    with pathlib.Path("who").open("a") as file:
        print(__file__, os.environ["PYTEST_XDIST_WORKER"], file=file)

test_two = test_three = test_one
"""


def test_each_folder_of_a_lane_is_there() -> None:
    folders = [ROOT / "tests" / folder for lane in _FOLDERS.values() for folder in lane]
    assert [folder for folder in folders if not folder.is_dir()] == []
    assert lane_of("tests/kernels/test_sample.py::test_x") == lane_of("tests/model_svc/runner/test_x.py::test_x")
    assert lane_of("tests/gateway/edge/test_x.py::test_x") == lane_of("tests/model_svc/test_service.py::test_x")
    assert lane_of("tests/e2e/test_kernel_forms.py::test_x") == lane_of("tests/browser/test_x.py::test_x")


def test_a_lane_stays_in_one_process_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.lanes import pytest_xdist_make_scheduler\n")
    for folder in ("kernels", "gateway/edge", "browser", "e2e", "model_svc/models"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_in_{folder[:4]}.py").write_text(WHO)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "3", "-p", "no:cacheprovider"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert "15 passed" in done.stdout, done.stdout + done.stderr
    found = re.findall(r"test_in_(\w+)\.py (gw\d)", (tmp_path / "who").read_text())
    workers = {folder: {worker for name, worker in found if name == folder} for folder, _ in found}
    assert workers["kern"] == workers["mode"] and workers["e2e"] == workers["brow"]
    assert len(workers["kern"] | workers["gate"] | workers["e2e"]) == 3
    assert [name for name, worker in found if worker in workers["e2e"]] == ["brow"] * 3 + ["e2e"] * 3
