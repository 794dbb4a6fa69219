"""Servers on this machine for the time of a block: `headrace up`, or any other that says when it is ready."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import anyio
import httpx

MODEL = "smollm2-135m-instruct"


class House(NamedTuple):
    """A running `headrace up`: its address, and its state directory."""

    url: str
    state_dir: str


def free_port() -> int:
    """Return a port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def serves_a_model(url: str) -> bool:
    """Tell whether a server lists a model."""
    with contextlib.suppress(httpx.HTTPError):
        return bool(httpx.get(f"{url}/v1/models", trust_env=False).json().get("data"))
    return False


@contextlib.contextmanager
def house(
    model: Path,
    *flags: str,
    port: int | None = None,
    state_dir: str | None = None,
    environ: dict[str, str] | None = None,
    is_ready: Callable[[str], bool] = serves_a_model,
    timeout_s: float = 60.0,
) -> Iterator[House]:
    """Run `headrace up` of a model directory, on a free port and in a new state directory unless told otherwise.

    `environ` is added to ours. Raises SystemExit when it has ended, or is not ready by `is_ready(url)` in time.
    """
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as new:
        state = state_dir or new
        command = [sys.executable, "-m", "headrace", "up", f"--port={port}", f"--state-dir={state}"]
        command += [f"--model-dir={model.parent}", f"--model={model.name}", *flags]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **(environ or {})})
        try:
            end = time.monotonic() + timeout_s
            while not is_ready(url):
                if time.monotonic() > end or process.poll() is not None:
                    raise SystemExit(f"the house did not start within {timeout_s:.0f} s: {' '.join(command)}")
                time.sleep(0.2)
            yield House(url, state)
        finally:
            process.terminate()
            process.wait(60)


async def until_ready(port: int, path: str = "/health/ready", timeout_s: float = 120.0) -> None:
    """Wait until a server on this machine answers `path` with 200. Raises TimeoutError."""
    async with httpx.AsyncClient(trust_env=False) as client:
        with anyio.fail_after(timeout_s):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"http://127.0.0.1:{port}{path}")).status_code == 200:
                        return
                await anyio.sleep(0.05)
