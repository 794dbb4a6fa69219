"""The supervisor's promises, kept with real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import psutil
import pytest

from headrace.supervisor import Child, ChildError, Supervisor
from tests.processes import has_ended

pytestmark = pytest.mark.anyio


CHILD = """
import os, time
from wire.lifeline import die_with
die_with(os.getppid())
print(1, flush=True)
time.sleep(600)
"""
PARENT = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


async def test_a_child_that_never_comes_up_fails_the_whole_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with Supervisor.open(tmp_path, grace_s=5) as supervisor:
            await supervisor.start("odd", ["serve", "no-such-role"])
            await anyio.sleep(150)
    assert caught.group_contains(ChildError, match="no-such-role")


def test_of_a_child_that_could_not_write_a_word_the_full_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "model.log"
    log.touch()
    assert Child("model", [], log, "model").last_words() == f"(its log {log} is empty)"
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    assert "no space is left" in Child("model", [], log, "model").last_words()


def test_of_a_child_that_said_why_it_ended_nothing_else_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    child = Child("model", [], log, "model")
    traceback = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: odd\n'
    log.write_text(traceback)
    assert child.last_words() == traceback.rstrip()
    log.write_text(f"{traceback}headrace model: the file is cut off\n")
    assert child.last_words() == f"headrace model: the file is cut off\n(its log: {log})"


async def test_a_crashed_child_is_started_again(tmp_path: Path) -> None:
    async with Supervisor.open(tmp_path, grace_s=5) as supervisor:
        child = await supervisor.start("loop", ["bench", "--url", "http://127.0.0.1:9", "--requests", "1"])
        supervisor.ready = True
        with anyio.fail_after(60):
            while child.restarts < 1:
                await anyio.sleep(0.05)
        assert child.log is not None
        assert "starting again" in child.log.read_text()


async def test_a_full_disk_does_not_keep_a_crashed_child_from_being_started_again(tmp_path: Path) -> None:
    async with Supervisor.open(tmp_path, grace_s=5) as supervisor:
        child = await supervisor.start("loop", ["bench", "--url", "http://127.0.0.1:9", "--requests", "1"])
        child.log, supervisor.ready = Path("/dev/full"), True
        with anyio.fail_after(60):
            while child.restarts < 1:
                await anyio.sleep(0.05)


async def test_leaving_ends_every_child(tmp_path: Path) -> None:
    async with Supervisor.open(tmp_path, grace_s=5) as supervisor:
        child = await supervisor.start("help", ["chat", "--url", "http://127.0.0.1:9"])
        supervisor.ready = True
        assert child.process is not None
        pid = child.process.pid
    assert not psutil.pid_exists(pid)


async def test_a_child_that_is_just_started_again_is_ended_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[psutil.Process] = []
    again, left = anyio.Event(), anyio.Event()
    open_process = anyio.open_process

    async def opened(_command: Any, **kwargs: Any) -> Any:
        process = await open_process([sys.executable, "-c", "import time; time.sleep(600)"], **kwargs)
        starts.append(psutil.Process(process.pid))
        if len(starts) == 2:  # it runs, and its supervisor does not know yet
            again.set()
            await left.wait()
        return process

    monkeypatch.setattr(anyio, "open_process", opened)
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks, Supervisor.open(tmp_path, grace_s=60) as supervisor:
            supervisor.ready = True
            await supervisor.start("lasting", [])
            starts[0].kill()
            await again.wait()
            tasks.start_soon(_later, left)
    assert all(not process.is_running() for process in starts)


async def _later(event: anyio.Event) -> None:
    for _ in range(20):  # while the supervisor is left
        await anyio.lowlevel.checkpoint()
    event.set()


def test_a_child_dies_when_its_supervisor_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
        gone, _ = psutil.wait_procs([child], timeout=60)
    assert gone or has_ended(child)
