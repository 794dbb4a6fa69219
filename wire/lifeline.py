"""A child process must not outlive its parent, also when that is killed with -9."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2)
# Looked up at once: between a fork and its exec little may be done.
_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform.startswith("linux") else None


def die_with(parent_pid: int, told_by: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send this process a signal when its parent dies; leave at once if the parent is gone already.

    Linux only; elsewhere nothing happens, and the parent's end must be noticed by other means (a pipe that closes). The
    parent is a thread to the kernel: the one that started us must live as long as we shall.
    """
    if _prctl is None:
        return
    _prctl(_PR_SET_PDEATHSIG, told_by)
    if os.getppid() != parent_pid:
        os._exit(1)
