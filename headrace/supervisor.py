"""Starts the processes of `headrace up`, restarts what crashes, and stops everything at the end.

Every child gets its own log file, or shares ours. A child that exits is started again after a growing pause; one that
fails at its very first start fails the whole, since a restart would not mend a wrong setting.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import Process, TaskGroup

from wire.errors import StartError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
STEADY_S = 10.0  # a child that ran this long has started well: the pause begins anew


class ChildError(StartError):
    """A child never came up; the message holds the end of its log."""


@dataclass
class Child:
    """One supervised process. Children of one `group` are of one kind, and are stopped together."""

    name: str
    command: Sequence[str]
    log: Path | None
    group: str
    process: Process | None = None
    restarts: int = 0
    environ: dict[str, str] = field(default_factory=dict)
    changing: anyio.Lock = field(default_factory=anyio.Lock)  # while it is started, or told to end

    def last_words(self, lines: int = 12) -> str:
        """Return what it said of its end, and where the rest stands; if it said nothing, the end of the log."""
        if self.log is None:
            return "its log is above"
        with contextlib.suppress(OSError):
            end = self.log.read_text(errors="replace").splitlines()[-lines:]
            if not end:
                full = shutil.disk_usage(self.log.parent).free == 0
                return f"(its log {self.log} is empty{': no space is left on that disk' if full else ''})"
            said = [at for at, line in enumerate(end) if line.startswith(f"headrace {self.name}: ")]
            return "\n".join([*end[said[-1] :], f"(its log: {self.log})"] if said else end)
        return ""


class Supervisor:
    """Owns the children; use as `async with Supervisor.open(log_dir) as supervisor`."""

    def __init__(self, log_dir: Path | None, tasks: TaskGroup, grace_s: float) -> None:
        self._log_dir = log_dir
        self._tasks = tasks
        self._grace_s = grace_s
        self._stopping = anyio.Event()
        self.children: list[Child] = []
        self.ready = False

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, log_dir: Path | None, *, grace_s: float) -> AsyncIterator[Supervisor]:
        """Yield a supervisor; on leaving, every child is drained (SIGTERM, then SIGKILL after `grace_s`).

        Without `log_dir` the children write where we write.
        """
        if log_dir is not None:
            try:
                await anyio.Path(log_dir).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StartError(f"no logs can be written to {log_dir} ({error.strerror}); see --state-dir") from error
        async with anyio.create_task_group() as tasks:
            supervisor = cls(log_dir, tasks, grace_s)
            try:
                yield supervisor
            finally:
                with anyio.CancelScope(shield=True):
                    await supervisor._stop()

    async def start(self, name: str, arguments: Sequence[str], *, group: str = "") -> Child:
        """Start `headrace ARGUMENTS` as a child and keep it running."""
        log = self._log_dir / f"{name}.log" if self._log_dir is not None else None
        child = Child(name, [sys.executable, "-m", "headrace", *arguments], log, group or name)
        self.children.append(child)
        if log is not None:
            log.write_bytes(b"")
        await self._spawn(child)
        self._tasks.start_soon(self._keep, child)
        return child

    async def _spawn(self, child: Child) -> None:
        """Start a child's process, unless all are being stopped: nobody would end it."""
        async with child.changing:
            if not self._stopping.is_set():
                child.process = await self._open(child)

    async def _open(self, child: Child) -> Process:
        environ = {**os.environ, "HEADRACE_SUPERVISOR": str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(child.log.open("ab")) if child.log is not None else None
            # An own session: Ctrl-C in the terminal reaches the supervisor alone, which drains the others in order.
            return await anyio.open_process(
                child.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environ,
                start_new_session=True,
            )

    async def _keep(self, child: Child) -> None:
        pause = FIRST_PAUSE_S
        while True:
            assert child.process is not None
            started = anyio.current_time()
            code = await child.process.wait()
            if self._stopping.is_set():
                return
            if not self.ready and code != 0:  # 0: somebody told it to stop
                raise ChildError(f"{child.name} ended with exit code {code}:\n{child.last_words()}")
            pause = FIRST_PAUSE_S if anyio.current_time() - started > STEADY_S else min(2 * pause, LONGEST_PAUSE_S)
            self._note(child, f"-- {child.name} ended with exit code {code}; starting again in {pause:.2f} s --\n")
            with anyio.move_on_after(pause):
                await self._stopping.wait()
                return
            child.restarts += 1
            await self._spawn(child)

    def _note(self, child: Child, text: str) -> None:
        if child.log is None:
            sys.stderr.write(text)
            return
        with contextlib.suppress(OSError), child.log.open("a") as log:  # a full disk must not end the house
            log.write(text)

    async def _stop(self) -> None:
        """Stop in the order of the stream: edges first, so that open answers finish while their replicas still run."""
        self._stopping.set()
        for _, group in itertools.groupby(reversed(self.children), key=lambda child: child.group):
            async with anyio.create_task_group() as tasks:
                for child in group:
                    tasks.start_soon(self._end, child)

    async def _end(self, child: Child) -> None:
        async with child.changing:  # it may just be starting again
            process = child.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
            with anyio.move_on_after(self._grace_s):
                await process.wait()
                return
            process.kill()
            await process.wait()
