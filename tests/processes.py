"""The command lines of processes that may end while they are looked at."""

from __future__ import annotations

import psutil


def command_of(process: psutil.Process) -> list[str]:
    """Return the words that it was started with; none of one that has ended, reaped or not."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:  # or its subclass, of a zombie
        return []
