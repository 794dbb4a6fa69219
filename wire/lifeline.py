"""A child process must not outlive its parent, also when that is killed with -9."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent dies; leave at once if the parent is gone already.

    Linux only; elsewhere nothing happens, and the parent's end must be noticed by other means (a pipe that closes).
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)
