"""Each test for itself: it draws the same whichever tests ran before, and none of its threads runs beside later ones.

A thread that outlives its test logs, draws or fails in the middle of another one, which then fails in its place.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
import zlib
from collections.abc import Iterator

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
