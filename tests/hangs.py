"""A limit for every test: one that waits for ever fails by name, with what it waits for, and the run goes on.

A wait of the main thread (a process, a pipe, a lock) is broken off by an exception; of an event loop all tasks are
cancelled and their stacks shown. What even that does not end, pytest's own `faulthandler_timeout` does, with the stacks
of all threads. The limit holds for set-up, call and tear-down each.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from collections.abc import Generator
from types import FrameType

import pytest

LIMIT_S = float(os.environ.get("TEST_LIMIT_S", "200"))
_AGAIN_S = 5.0  # a wait in the clean-up is broken off too


class TestHangsError(Exception):
    """A test waits for longer than any test may take."""


def _break_off(signum: int, frame: FrameType | None) -> None:
    del signum, frame
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise TestHangsError(f"the test hangs: not done after {LIMIT_S:g} s") from None
    stacks = io.StringIO()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.print_stack(file=stacks)
    sys.stderr.write(f"the test hangs: not done after {LIMIT_S:g} s; its tasks:\n{stacks.getvalue()}")
    for task in tasks:
        loop.call_soon_threadsafe(task.cancel, "the test hangs")


def _limited() -> Generator[None, object, object]:
    before = signal.signal(signal.SIGALRM, _break_off)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S, _AGAIN_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Limit the fixtures."""
    return (yield from _limited())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Limit the test."""
    return (yield from _limited())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Limit what the fixtures clean up."""
    return (yield from _limited())
