"""A child process must not outlive the supervisor, also when that is killed with -9."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its supervisor dies (Linux; a no-op elsewhere and when not supervised).

    The supervisor passes its process id in HEADRACE_SUPERVISOR; if it is gone already, leave at once.
    """
    supervisor = os.environ.pop("HEADRACE_SUPERVISOR", "")
    if not supervisor or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(supervisor):
        os._exit(1)
