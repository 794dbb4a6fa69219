"""Looking at processes that may end meanwhile, and holding them."""

from __future__ import annotations

import time

import psutil


def command_of(process: psutil.Process) -> list[str]:
    """Return the words that it was started with; none of one that has ended, reaped or not."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:  # or its subclass, of a zombie
        return []


def has_ended(process: psutil.Process) -> bool:
    """Tell whether it has ended, reaped or not: who reaps orphans is the machine's affair."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def suspend(process: psutil.Process) -> None:
    """Stop it until `resume`, and wait until it stands still: a signal is taken when its thread has a processor."""
    process.suspend()
    while process.status() != psutil.STATUS_STOPPED:
        time.sleep(0.005)
