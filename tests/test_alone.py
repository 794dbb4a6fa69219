"""A test that leaves a thread behind fails by name; what a test draws does not depend on those before it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
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


def run(folder: Path, *which: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "tests.alone", "-p", "no:cacheprovider"]
    command += ["-p", "anyio", *which]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_a_thread_that_is_left_is_named_and_draws_are_each_tests_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_leaving.py").write_text(LEAVING)
    whole, single = run(tmp_path, "test_leaving.py").stdout, run(tmp_path, "test_leaving.py::test_draws").stdout
    assert re.findall(r"^(?:FAILED|ERROR) test_leaving\.py::(\w+)", whole, re.MULTILINE) == ["test_leaves"], whole
    assert "the test leaves the thread 'mine' running" in whole
    drawn = [re.findall(r"drawn (\S+)", printed) for printed in (whole, single)]
    assert drawn[0] == drawn[1] != [], whole


UNCLOSED = """
import socket
from tests.alone import no_socket_is_left

class Client:
    def __init__(self):
        self.me, self.socket = self, socket.socket()

def test_leaves():
    Client()

def test_after():
    pass
"""


def test_a_socket_that_is_left_is_reported_by_the_test_that_left_it(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "test_unclosed.py").write_text(UNCLOSED)
    found = run(tmp_path, "test_unclosed.py").stdout
    assert re.findall(r"^ERROR test_unclosed\.py::(\w+)", found, re.MULTILINE) == ["test_leaves"], found


OPEN = """
import asyncio, socket
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio", {"use_uvloop": True}

@pytest.mark.anyio
async def test_leaves_open():
    ours, _ = socket.socketpair()
    _kept.append(await asyncio.get_running_loop().create_unix_connection(asyncio.Protocol, sock=ours))
    _kept.append(_)

def test_after():
    pass

_kept = []
"""


def test_a_connection_that_is_left_open_fails_the_run_by_name_and_does_not_hang_it(tmp_path: Path) -> None:
    warnings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["filterwarnings"]
    (tmp_path / "pytest.ini").write_text("\n    ".join(["[pytest]\nfilterwarnings =", *warnings]) + "\n")
    (tmp_path / "test_open.py").write_text(OPEN)
    done = run(tmp_path, "test_open.py")
    found = done.stdout
    assert "2 passed" in found and done.returncode == 1, found
    assert re.search(r"LEFT OPEN test_open\.py::test_leaves_open\S*: unclosed resource <UnixTransport", found), found
