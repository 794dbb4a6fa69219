"""`python -m gateway.edge`: the edge as a process of its own."""

from __future__ import annotations

import logging
import signal

import anyio
import uvloop

from gateway.edge.service import serve
from gateway.edge.settings import EdgeSettings
from wire.settings import from_command_line


async def _main(settings: EdgeSettings) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve, settings)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                tasks.cancel_scope.cancel()


if __name__ == "__main__":
    read = from_command_line(EdgeSettings)
    logging.basicConfig(level=read.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    anyio.run(_main, read, backend_options={"loop_factory": uvloop.new_event_loop})
