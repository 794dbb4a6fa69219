"""`headrace up`: the whole ring on one machine, from nothing to a chat page."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import socket
import sys
import time
from pathlib import Path

import anyio
import httpx
import msgspec
from rich.console import Console
from rich.markup import escape

from headrace.catalogue import CATALOGUE
from headrace.complain import complain
from headrace.processes import processes
from headrace.pull import PullError, pull, refresh_advice
from headrace.roles import ROLES, settings_class
from headrace.settings import UpSettings
from headrace.supervisor import Supervisor
from wire.bus.embedded import embedded_server
from wire.environment import load
from wire.errors import StartError
from wire.process import first_leaf, until_signal
from wire.threads import in_thread

_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
_AWAKE_MS, _CORES_TO_SPARE = 10.0, 8
INTERRUPTED = 130  # what a shell says of a command that Ctrl-C ended


class UpError(StartError):
    """Why `up` cannot start, in one sentence for the user."""


def check_port(host: str, port: int) -> None:
    """Raise UpError if nobody can listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise UpError(
                    f"{host} is no address of this machine ({error.strerror}); choose one with --host."
                ) from None
            raise UpError(f"Port {port} on {host} cannot be used ({error.strerror}); choose one with --port.") from None


def check_desks(settings: UpSettings) -> None:
    """Raise SettingsError for a variable that one of the desks would refuse: before any of them has been started."""
    shared = msgspec.structs.asdict(settings) | {"model": "", "role": "both"}
    for role in ROLES:
        cls = settings_class(role)
        load(cls, overrides={name: value for name, value in shared.items() if name in cls.__struct_fields__})


def model_place(model: str) -> tuple[str, str]:
    """Split a model directory given as a path into name and parent. Raises UpError where there is none."""
    place = Path(model).expanduser().resolve()
    if not (place / "config.json").exists():
        why = "it holds no config.json" if place.exists() else "it does not exist"
        if place.suffix == ".gguf" or (not place.exists() and _HUB_NAME.fullmatch(model)):
            why = f"`headrace pull {model}` makes one"
        raise UpError(f"--model: {model} is no model directory; {why}")
    return place.name, str(place.parent)


def address(settings: UpSettings) -> str:
    """Return the URL of the API and the chat page."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{settings.port}"


def ensure_model(settings: UpSettings, console: Console) -> None:
    """Get each served model that has no directory yet. Raises UpError."""
    for model in settings.models:
        path = settings.model_path(model)
        if (path / "config.json").exists():
            refresh_advice(path)
            continue
        if model not in CATALOGUE:
            raise UpError(
                f"Model {model!r} is neither in {settings.model_dir} nor in the catalogue "
                f"({', '.join(CATALOGUE)}); `headrace pull` makes a model of a .gguf file or a hub repository."
            )
        try:
            pull(model, Path(settings.model_dir).expanduser(), console=console)
        except PullError as error:
            raise UpError(str(error)) from error


def awake_ms(settings: UpSettings) -> float:
    """Return for how long a request keeps processes awake: a GPU's host has cores that compute nothing."""
    if settings.awake_ms is not None:
        return settings.awake_ms
    on_gpu = os.environ.get("HEADRACE_DEVICE", "").startswith("cuda")
    return _AWAKE_MS if on_gpu and (os.cpu_count() or 1) >= _CORES_TO_SPARE else 0.0


def common_flags(settings: UpSettings, redis_url: str) -> list[str]:
    """Return the flags that every role gets."""
    # A URL that was given may hold a password: the roles have it from the environment, and flags are seen by everybody.
    bus = [] if settings.redis_url else [f"--redis-url={redis_url}"]
    return [
        *bus,
        f"--partitions={settings.partitions}",
        f"--state-dir={settings.state_dir}",
        f"--model-dir={settings.model_dir}",
        f"--models={','.join(settings.models)}",
        f"--block-size={settings.block_size}",
        f"--drain-s={settings.drain_s}",
        f"--log-level={settings.log_level}",
        f"--metrics-host={settings.metrics_host}",
        f"--awake-ms={awake_ms(settings):g}",
        *([f"--adapters={','.join(settings.adapters)}"] if settings.adapters else []),
        *([f"--adapter-dir={settings.adapter_dir}"] if settings.adapter_dir else []),
    ]


async def run(settings: UpSettings, console: Console) -> int:
    """Start everything, say where it is, and stay until a signal; returns the exit code. Raises StartError."""
    started = time.monotonic()
    check_port(settings.host, settings.port)
    await in_thread(ensure_model, settings, console)
    async with contextlib.AsyncExitStack() as stack:
        url = settings.redis_url or await stack.enter_async_context(embedded_server(Path(settings.state_dir)))
        logs = Path(settings.state_dir) / "logs"
        supervisor = await stack.enter_async_context(Supervisor.open(logs, grace_s=settings.drain_s + 5.0))
        async with until_signal():
            await _start_children(supervisor, settings, common_flags(settings, url))
            await _wait_until_ready(settings)
            supervisor.ready = True
            console.print(
                f"[bold green]ready[/] in {time.monotonic() - started:.1f} s: "
                f"[bold]{escape(address(settings))}[/]  (logs in {escape(str(logs))}; Ctrl-C stops)",
                soft_wrap=True,
            )
            await anyio.sleep_forever()
        if supervisor.ready:
            console.print(f"draining: open answers may take {settings.drain_s:g} s; Ctrl-C again ends them")
    return 0 if supervisor.ready else INTERRUPTED


async def _start_children(supervisor: Supervisor, settings: UpSettings, common: list[str]) -> None:
    ports = itertools.count(settings.metrics_port) if settings.metrics_port else itertools.repeat(0)
    for name, roles, flags in processes(settings):
        own = (f"--process-name={name}", f"--metrics-port={next(ports)}")
        await supervisor.start(name, ["serve", roles, *common, *own, *flags], group=roles)


async def _wait_until_ready(settings: UpSettings) -> None:
    url = f"{address(settings)}/health/ready"
    last = "the edge does not answer yet"
    async with httpx.AsyncClient(trust_env=False) as client:
        with anyio.move_on_after(settings.ready_timeout_s):
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    reply = await client.get(url)
                    if reply.status_code == 200:
                        return
                    last = reply.text
                await anyio.sleep(0.05)
    raise UpError(f"Not ready after {settings.ready_timeout_s:.0f} s: {last}")


def main(settings: UpSettings) -> int:
    """Run `up`; returns the exit code (0 stopped by the user, 1 could not start, 130 stopped while starting)."""
    console = Console(stderr=not sys.stdout.isatty())
    try:
        return anyio.run(run, settings, console)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        cause = first_leaf(error)
        if not isinstance(cause, StartError):
            raise
        complain("headrace up", cause)
        return 1
