"""Fixtures that many packages share: one real server for the session, emptied before each test that asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import redis

from tests.alone import (
    no_socket_is_left,
    no_thread_is_left,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_warning_recorded,
    same_draws,
)
from tests.hangs import pytest_runtest_call, pytest_runtest_setup, pytest_runtest_teardown
from tests.interpreter import hasten_interpreter
from tests.jitter import jitter
from tests.lanes import keep_own, pytest_configure_node, pytest_ignore_collect, pytest_xdist_make_scheduler
from wire.bus import Bus, BusOptions

__all__ = [
    "jitter",
    "no_socket_is_left",
    "no_thread_is_left",
    "pytest_configure_node",
    "pytest_ignore_collect",
    "pytest_runtest_call",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_warning_recorded",
    "pytest_xdist_make_scheduler",
    "same_draws",
]

# Before torch is imported: spinning OpenMP threads make a test ten times slower on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Triton decides at its first import whether it interprets, and transformers may import it before our kernels do.
if not Path("/proc/driver/nvidia").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples in every run, and no clock over them: a busy machine must not fail a test.
hypothesis.settings.register_profile(
    "headrace",
    derandomize=True,
    deadline=None,
    max_examples=50,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("headrace")

_OWNER = """
import sys, anyio
from wire.bus import embedded_server
async def main():
    async with embedded_server(sys.argv[1]) as url:
        print(url, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
anyio.run(main)
"""


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Keep to this process's lanes, skip what needs a card where there is none, and get the interpreter ready."""
    keep_own(items, config)
    hasten_interpreter()  # by now Triton was imported, where anything needs it
    if Path("/proc/driver/nvidia").exists():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run async tests on what the services run on."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
def bus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an embedded server that lives for the session, owned by a process of its own."""
    command = [sys.executable, "-c", _OWNER, str(tmp_path_factory.mktemp("state"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        try:
            url = owner.stdout.readline().strip()
            assert url.startswith("unix://"), "the embedded server did not start"
            yield url
            owner.communicate("", timeout=100)
        finally:
            owner.kill()  # else leaving the block would wait for it without an end; its server dies with it


@pytest.fixture
def bus_url(bus_server: str) -> str:
    """The URL of a real and empty server."""
    with redis.Redis.from_url(bus_server, socket_timeout=100) as client:
        client.flushall()
        client.script_flush()
    return bus_server


@pytest.fixture
def bus_options() -> BusOptions:
    """Timing for tests: no busy machine makes a living consumer look dead or a server look away."""
    return BusOptions(
        block_s=0.05,
        reply_timeout_s=30.0,
        connect_timeout_s=30.0,
        patience_s=60.0,
        claim_idle_s=3600.0,
        retry_delay_s=0.02,
    )


@pytest.fixture
async def bus(bus_url: str, bus_options: BusOptions) -> AsyncIterator[Bus]:
    """An open bus on an empty server."""
    async with Bus.open(bus_url, bus_options) as opened:
        yield opened


@pytest.fixture
def orderless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply in float64 in Triton's interpreter: on some CPUs numpy's sums differ by a row's place in a matrix."""
    multiply = np.matmul

    def in_float64(a: np.ndarray, b: np.ndarray, dtype: Any = None) -> np.ndarray:
        product: np.ndarray = multiply(a.astype(np.float64), b.astype(np.float64))
        return product.astype(dtype or a.dtype)

    monkeypatch.setattr(np, "matmul", in_float64)
