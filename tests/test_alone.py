"""A test that leaves a thread behind fails by name; what a test draws does not depend on those before it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CONFTEST = """
from tests import alone
alone._PATIENCE_S = 0.2
"""
LEAVING = """
import random, threading

hold = threading.Event()

def test_leaves():
    threading.Thread(target=hold.wait, name="mine", daemon=True).start()

def test_ends():
    thread = threading.Thread(target=lambda: None)
    thread.start()

def test_draws():
    print("drawn", random.random())
"""


def run(folder: Path, *which: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "tests.alone", "-p", "no:cacheprovider"]
    command += ["-p", "no:langsmith_plugin", *which]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False).stdout


def test_a_thread_that_is_left_is_named_and_draws_are_each_tests_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_leaving.py").write_text(LEAVING)
    whole, single = run(tmp_path, "test_leaving.py"), run(tmp_path, "test_leaving.py::test_draws")
    assert re.findall(r"^(?:FAILED|ERROR) test_leaving\.py::(\w+)", whole, re.MULTILINE) == ["test_leaves"], whole
    assert "the test leaves the thread 'mine' running" in whole
    drawn = [re.findall(r"drawn (\S+)", printed) for printed in (whole, single)]
    assert drawn[0] == drawn[1] != [], whole
