"""What is told of processes, some of which end while they are looked at."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from loadtest import processor


def test_processes_that_have_ended_have_no_role_and_have_spent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        process = psutil.Process(ended.pid)
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        monkeypatch.setattr(processor, "family", lambda _: [psutil.Process(), process])
        assert list(processor.processes()) == ["client"]  # not reaped yet
    assert list(processor.processes()) == ["client"]
    assert processor.spent([process]) == processor.Spent()
