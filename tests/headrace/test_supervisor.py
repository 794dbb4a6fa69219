"""The supervisor's promises, kept with real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import psutil
import pytest

from headrace.supervisor import ChildError, Supervisor

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


async def test_a_crashed_child_is_started_again(tmp_path: Path) -> None:
    async with Supervisor.open(tmp_path, grace_s=5) as supervisor:
        child = await supervisor.start("loop", ["bench", "--url", "http://127.0.0.1:9", "--requests", "1"])
        supervisor.ready = True
        with anyio.fail_after(60):
            while child.restarts < 1:
                await anyio.sleep(0.05)
        assert "starting again" in child.log.read_text()


async def test_leaving_ends_every_child(tmp_path: Path) -> None:
    async with Supervisor.open(tmp_path, grace_s=5) as supervisor:
        child = await supervisor.start("help", ["chat", "--url", "http://127.0.0.1:9"])
        supervisor.ready = True
        assert child.process is not None
        pid = child.process.pid
    assert not psutil.pid_exists(pid)


def test_a_child_dies_when_its_supervisor_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
        gone, _ = psutil.wait_procs([child], timeout=60)
    assert gone or child.status() == psutil.STATUS_ZOMBIE
