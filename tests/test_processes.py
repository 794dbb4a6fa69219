"""Looking for a process goes on past those that have ended."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from tests.processes import command_of


def test_a_process_that_runs_has_its_words_and_one_that_ended_has_none() -> None:
    code = "input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as running:
        process = psutil.Process(running.pid)
        assert command_of(process)[-2:] == ["-c", code]
        running.kill()
        os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)  # ended, and not reaped yet
        assert process.status() == psutil.STATUS_ZOMBIE
        assert command_of(process) == []
    assert command_of(process) == []
