"""Looking for a process goes on past those that have ended."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from tests.processes import command_of, has_ended, suspend


def test_a_process_that_runs_has_its_words_and_can_be_held_and_one_that_ended_has_none() -> None:
    code = "print('here'); input()"
    command = [sys.executable, "-uc", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "here\n"  # Popen may return before the kernel has noted its words
        process = psutil.Process(running.pid)
        assert command_of(process)[-2:] == ["-uc", code]
        assert not has_ended(process)
        suspend(process)
        assert process.status() == psutil.STATUS_STOPPED
        running.kill()
        os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)  # ended, and not reaped yet
        assert process.status() == psutil.STATUS_ZOMBIE
        assert command_of(process) == [] and has_ended(process)
    assert command_of(process) == [] and has_ended(process)
