"""A process shows that its event loop turns, and stops doing so when the loop hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

_PROCESS = """
import sys, time, anyio
from wire.process import run
from wire.settings import Settings

async def serve(settings):
    print("serving", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline)
    time.sleep(60)  # what must never happen: work on the loop

run(serve, Settings(alive_file=sys.argv[1]), name="probe")
"""


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def test_the_alive_file_stays_young_until_the_loop_hangs(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    with subprocess.Popen(
        [sys.executable, "-c", _PROCESS, str(alive)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == "serving\n"
            first = _wait_for_touch(alive, after=0.0)
            again = _wait_for_touch(alive, after=first)
            process.stdin.write("hang\n")
            process.stdin.flush()
            _wait_until(lambda: _age_s(alive) > 5.0)
            assert alive.stat().st_mtime - again < 5.0
        finally:
            process.send_signal(signal.SIGKILL)


def _wait_for_touch(path: Path, *, after: float) -> float:
    _wait_until(lambda: path.exists() and path.stat().st_mtime > after)
    return path.stat().st_mtime


def _wait_until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.05)
