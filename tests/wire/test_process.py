"""A process shows that its event loop turns, and stops doing so when the loop hangs; it hears the first signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wire.process import run, shows_readiness
from wire.settings import Settings

_PROCESS = """
import sys, time, anyio
from wire.process import run
from wire.settings import Settings

async def serve(settings):
    print("serving", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline)
    time.sleep(3600)  # what must never happen: work on the loop

run(serve, Settings(alive_file=sys.argv[1]), name="probe")
"""


_UNTIL_SIGNAL = """
import anyio
from wire.process import until_signal

async def main():
    async with until_signal():
        print("in", flush=True)
        await anyio.sleep_forever()
    print("out", flush=True)

anyio.run(main)
"""


@pytest.mark.parametrize(
    "wrong",
    [
        {"alive_file": "/nonexistent/alive"},
        {"ready_file": "/nonexistent/ready"},
        {"metrics_host": "not an address", "metrics_port": 9},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_setting_that_the_system_refuses_is_named_and_ends_with_code_2(
    wrong: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gc.set_threshold", lambda *_: None)

    async def serve(settings: Settings) -> None:
        with shows_readiness(settings):
            raise AssertionError

    with pytest.raises(SystemExit) as left:
        run(serve, Settings(**wrong), name="probe")
    assert left.value.code == 2
    assert next(iter(wrong)) in capsys.readouterr().err


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
            _wait_for_touch(alive, after=first)
            process.stdin.write("hang\n")
            process.stdin.flush()
            _wait_until(lambda: _age_s(alive) > 3.5)
        finally:
            process.send_signal(signal.SIGKILL)


def test_a_signal_is_heard_from_the_blocks_first_moment_on() -> None:
    def ignore() -> None:  # as a shell does for what it runs in the background
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    with subprocess.Popen(
        [sys.executable, "-c", _UNTIL_SIGNAL], stdout=subprocess.PIPE, text=True, preexec_fn=ignore
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "in\n"
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60)[0] == "out\n"
            assert process.returncode == 0
        finally:
            process.kill()


def _wait_for_touch(path: Path, *, after: float) -> float:
    _wait_until(lambda: path.exists() and path.stat().st_mtime > after)
    return path.stat().st_mtime


def _wait_until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.05)
