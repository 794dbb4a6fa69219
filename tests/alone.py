"""Each test for itself: it draws the same whichever tests ran before, and none of its threads runs beside later ones.

A thread that outlives its test logs, draws or fails in the middle of another one, which then fails in its place.
A connection that is left open may do the like.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import threading
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tqdm import tqdm

tqdm.monitor_interval = 0  # else its first bar starts a thread that watches over bars for as long as the process lives
_END_BY_THEMSELVES = ("AnyIO worker thread",)  # idle, and gone with their event loop or after ten seconds
_PATIENCE_S = 60.0  # for threads that are about to end


@pytest.fixture(autouse=True)
def same_draws(request: pytest.FixtureRequest) -> None:
    """Seed Python's random numbers, and those of torch where it is in use, by the test's name."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _open_sockets() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").glob("*"):  # empty where there is no such folder
        with contextlib.suppress(OSError):
            found.add(str(descriptor.readlink()))
    return {what for what in found if what.startswith("socket:")}


@pytest.fixture(autouse=True)
def no_socket_is_left() -> Iterator[None]:
    """Have a socket that nobody closed reported by this test: a later collection would blame some other one."""
    before = _open_sockets()
    yield
    if _open_sockets() - before:
        gc.collect()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fail a test that leaves a thread running. Fixtures of more than one test have started theirs before."""
    before = set(threading.enumerate())
    yield
    left = [t for t in set(threading.enumerate()) - before if not t.name.startswith(_END_BY_THEMSELVES)]
    if left:
        gc.collect()  # a pool's threads end with it, and an error that was caught may hold it
    for thread in left:
        thread.join(_PATIENCE_S)
        assert not thread.is_alive(), f"the test leaves the thread {thread.name!r} running"


_left_open: list[str] = []


def pytest_warning_recorded(warning_message: warnings.WarningMessage, nodeid: str) -> None:
    """Note who left a connection open: uvloop says so when its loop is closed, and closes it."""
    if str(warning_message.message).startswith("unclosed resource <"):
        _left_open.append(f"{nodeid or 'somebody'}: {warning_message.message}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run for connections that were left open."""
    if _left_open and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name those tests."""
    for line in _left_open:
        terminalreporter.write_line(f"LEFT OPEN {line}", red=True)
