"""Runs one service as a process of its own: event loop, log format, tracing, and a way to stop."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import uvloop

from wire import telemetry
from wire.settings import Settings

S = TypeVar("S", bound=Settings)


def run(serve: Callable[[S], Awaitable[None]], settings: S, *, name: str) -> None:
    """Run `serve(settings)` until SIGTERM or SIGINT, which cancel it: it drains by itself. A second signal ends it."""
    logging.basicConfig(
        level=settings.log_level.upper(), format=f"%(asctime)s {name} %(levelname)s %(name)s: %(message)s"
    )
    telemetry.setup(f"headrace-{name}")
    try:
        anyio.run(_run, serve, settings, backend_options={"loop_factory": uvloop.new_event_loop})
    finally:
        telemetry.shutdown()


async def _run(serve: Callable[[S], Awaitable[None]], settings: S) -> None:
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(_stop_on_signal, scope)
            await serve(settings)
        tasks.cancel_scope.cancel()


async def _stop_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            if scope.cancel_called:
                os._exit(130)
            scope.cancel()
