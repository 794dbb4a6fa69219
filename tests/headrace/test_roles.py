"""`headrace serve` tells a readiness probe when its desks take work, and that they no longer do."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from wire.process import shows_readiness
from wire.settings import Settings


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_process_is_ready_from_its_desks_start_to_its_end(bus_url: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    flags = (f"--redis-url={bus_url}", f"--ready-file={ready}")
    with subprocess.Popen([sys.executable, "-m", "headrace", "serve", "history", *flags]) as process:
        try:
            wait_until(ready.exists)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert not ready.exists()


def test_what_a_killed_process_left_says_nothing(tmp_path: Path) -> None:
    left = tmp_path / "ready"
    left.touch()
    with shows_readiness(Settings(ready_file=str(left))) as note_ready:
        assert not left.exists()
        note_ready()
        assert left.exists()
