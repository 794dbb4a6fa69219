"""`headrace serve edge --workers N`: several edges share one port, one process each, supervised and drained together.

Python serves on one core a process. The kernel spreads new connections over the listeners of a port (SO_REUSEPORT).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

import anyio

from headrace.supervisor import Supervisor
from wire.errors import StartError
from wire.process import first_leaf, until_signal
from wire.settings import Settings

_UP_S = 5.0  # an edge that lives so long has started: what ends it later is started again


async def _run(settings: Settings, arguments: Sequence[str], workers: int) -> None:
    ports = itertools.count(settings.metrics_port) if settings.metrics_port else itertools.repeat(0)
    name = settings.process_name or "edge"
    async with Supervisor.open(None, grace_s=settings.drain_s + 5.0) as supervisor, until_signal():
        for number in range(workers):
            own = ["--reuse-port=true", f"--process-name={name}-{number}", f"--metrics-port={next(ports)}"]
            # Of a flag given twice the last one counts.
            await supervisor.start(f"{name}-{number}", ["serve", "edge", *arguments, *own], group="edge")
        await anyio.sleep(_UP_S)
        supervisor.ready = True
        await anyio.sleep_forever()


def main(settings: Settings, arguments: Sequence[str], workers: int) -> int:
    """Run the workers until a signal, then drain them; returns the exit code."""
    try:
        anyio.run(_run, settings, arguments, workers)
    except Exception as error:
        cause = first_leaf(error)
        if not isinstance(cause, StartError):
            raise
        sys.stderr.write(f"headrace edge: {cause}\n")
        return 1
    return 0
