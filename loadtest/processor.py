"""Processor time of processes, by the kernel's account: where others use the machine too it says more than a clock.

A group is a process and its children. Switches are the voluntary ones: how often a thread went to sleep and was woken.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import psutil


class Spent(NamedTuple):
    """What a group of processes has used: seconds of user and of system time, and voluntary context switches."""

    user_s: float = 0.0
    system_s: float = 0.0
    switches: int = 0

    @property
    def cpu_s(self) -> float:
        """Return user and system time together."""
        return self.user_s + self.system_s

    def __sub__(self, before: Spent) -> Spent:
        """Return what was used since `before`."""
        return Spent(self.user_s - before.user_s, self.system_s - before.system_s, self.switches - before.switches)


def spent(processes: Iterable[psutil.Process]) -> Spent:
    """Return what these processes have used so far, all their threads included; one that has ended counts nothing."""
    total = Spent()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
            times = process.cpu_times()
            total = Spent(
                total.user_s + times.user,
                total.system_s + times.system,
                total.switches + _switches(process),
            )
    return total


def _switches(process: psutil.Process) -> int:
    # The process's own status file counts its first thread only.
    count = 0
    for thread in process.threads():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process.pid}/task/{thread.id}/status").read_text()
            count += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return count


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all below it."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


ROLES = {
    "engine_process": "engine",
    "process-name=desks": "edge and desks",
    "serve model": "model service",
    "cpu_child": "engine alone",
}


def processes() -> dict[str, list[psutil.Process]]:
    """Return what runs below this process by its role, and this process, the client; one that has ended is left out."""
    found: dict[str, list[psutil.Process]] = {}
    for process in family(os.getpid())[1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            line, name = " ".join(process.cmdline()), process.name()
            role = next((role for mark, role in ROLES.items() if mark in line), "supervisor")
            found.setdefault("bus" if "valkey" in name else role, []).append(process)
    return {**found, "client": [psutil.Process()]}
