"""Runs one service as a process of its own: event loop, log format, tracing, and a way to stop."""

from __future__ import annotations

import errno
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

import anyio
import uvloop
from anyio.abc import TaskStatus

from wire import metrics, telemetry
from wire.errors import StartError, UnavailableError
from wire.exposition import serve_metrics
from wire.settings import Settings, SettingsError

S = TypeVar("S", bound=Settings)
_ALIVE_S = 2.0
# Messages come and go by the thousand and hold no cycles; Python's default of 700 looks through the open requests
# hundreds of times a second.
_GC_EVERY = 20_000


def run(serve: Callable[[S], Awaitable[None]], settings: S, *, name: str) -> None:
    """Run `serve(settings)` until SIGTERM or SIGINT, which cancel it: it drains by itself. A second signal ends it.

    What an operator can mend (StartError, a bus that does not answer, a taken address) is one sentence and exit code 1;
    a setting (SettingsError) exit code 2.
    """
    name = settings.process_name or name
    logging.basicConfig(
        level=settings.log_level.upper(), format=f"%(asctime)s {name} %(levelname)s %(name)s: %(message)s"
    )
    gc.set_threshold(_GC_EVERY, 20, 20)
    telemetry.setup(f"headrace-{name}")
    try:
        metrics.note_process(name)
        anyio.run(_run, serve, settings, backend_options={"loop_factory": uvloop.new_event_loop})
    except Exception as error:
        cause = first_leaf(error)
        if not isinstance(cause, StartError | UnavailableError | OSError):
            raise
        sys.stderr.write(f"headrace {name}: {cause}\n")
        raise SystemExit(2 if isinstance(cause, SettingsError) else 1) from None
    finally:
        telemetry.shutdown()


def first_leaf(error: BaseException) -> BaseException:
    """Return what first went wrong inside nested task groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _run(serve: Callable[[S], Awaitable[None]], settings: S) -> None:
    async with anyio.create_task_group() as tasks:
        if settings.alive_file:
            with names_setting("alive_file", settings.alive_file):
                Path(settings.alive_file).touch()  # noqa: ASYNC240 - microseconds
            tasks.start_soon(_show_life, Path(settings.alive_file))
        if settings.metrics_port:
            with names_setting("metrics_host, metrics_port", f"{settings.metrics_host}:{settings.metrics_port}"):
                await tasks.start(serve_metrics, settings.metrics_host, settings.metrics_port)
        async with until_signal():
            await serve(settings)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def until_signal() -> AsyncIterator[None]:
    """Cancel the block at the first SIGTERM or SIGINT; a second one while it ends, ends the process.

    Signals are listened for before the block begins: one that comes right at its start is not lost.
    """
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            await tasks.start(_cancel_on_signal, scope)
            yield
        tasks.cancel_scope.cancel()


@contextmanager
def names_setting(name: str, value: object) -> Iterator[None]:
    """Name the setting whose value cannot be used, and raise SettingsError; an address taken by another is no such."""
    try:
        yield
    except OSError as error:
        kind = StartError if error.errno == errno.EADDRINUSE else SettingsError
        raise kind(f"{name}: {value} cannot be used ({error.strerror or error})") from None
    except StartError as error:
        raise SettingsError(f"{name}: {error}") from error


@contextmanager
def shows_readiness(settings: Settings) -> Iterator[Callable[[], None]]:
    """Yield what makes the file for readiness probes. One that a killed process left does not count."""
    path = Path(settings.ready_file) if settings.ready_file else None
    if path is None:
        yield lambda: None
        return
    with names_setting("ready_file", settings.ready_file):  # now: not when the model is loaded
        path.unlink(missing_ok=True)
        TemporaryFile(dir=path.parent).close()
    try:
        yield path.touch
    finally:
        path.unlink(missing_ok=True)


async def _cancel_on_signal(
    scope: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            if scope.cancel_called:
                os._exit(130)
            scope.cancel()


async def _show_life(path: Path) -> None:
    """Touch the file for ever. One that grows old says that the loop hangs, also of desks that speak no HTTP."""
    while True:
        path.touch()  # noqa: ASYNC240 - microseconds, and a thread that still runs would hide a loop that does not
        await anyio.sleep(_ALIVE_S)
