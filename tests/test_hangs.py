"""A test that waits for ever fails by name, and those after it run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LIMITS = """
import pytest
from tests import hangs

def short_for(*names):
    def limit(item):
        hangs.LIMIT_S = 0.4 if item.name in names else 60.0
        return (yield)
    return pytest.hookimpl(wrapper=True, tryfirst=True)(limit)

pytest_runtest_setup = short_for()
pytest_runtest_call = short_for("test_process", "test_event", "test_thread")
pytest_runtest_teardown = short_for("test_teardown")
"""

HANGING = """
import subprocess, threading, time
import anyio, anyio.to_thread, pytest

@pytest.fixture
def stuck():
    yield
    threading.Event().wait()

@pytest.fixture
def anyio_backend():
    return "asyncio", {"use_uvloop": True}

def test_process():
    with subprocess.Popen(["sleep", "20"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        pass

def test_teardown(stuck):
    pass

@pytest.mark.anyio
async def test_event():
    await anyio.Event().wait()

@pytest.mark.anyio
async def test_thread():
    await anyio.to_thread.run_sync(time.sleep, 1, abandon_on_cancel=True)

def test_fine():
    pass
"""


def test_every_kind_of_endless_wait_is_broken_off_by_name(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    (tmp_path / "conftest.py").write_text(LIMITS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.hangs",
        "-p",
        "no:cacheprovider",
        "-p",
        "anyio",
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, "test_hanging.py"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) test_hanging\.py::(\w+)", done.stdout, re.MULTILINE)
    assert sorted(failed) == ["test_event", "test_process", "test_teardown", "test_thread"], done.stdout
    assert "2 passed" in done.stdout
    assert "the test hangs: not done after 0.4 s; its tasks" in done.stdout
