"""A whole Headrace, started as a user would: `headrace up` with a port and a state directory of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tests.ports import free_port

# No busy machine makes a desk look silent, or a turn that is being stored lost.
PATIENT = {
    "HEADRACE_HISTORY_TIMEOUT_S": "100",
    "HEADRACE_HISTORY_TURN_WAIT_S": "60",
    "HEADRACE_TOKENIZE_TIMEOUT_S": "100",
}


@dataclass
class House:
    """A running `headrace up`."""

    process: subprocess.Popen[bytes]
    url: str
    state_dir: Path
    output: Path

    def client(self, timeout_s: float = 120.0) -> httpx.Client:
        """Return an HTTP client of the API."""
        return httpx.Client(base_url=self.url, timeout=timeout_s, trust_env=False)

    def answer(self, model: str, num_tokens: int) -> str:
        """Return a greedy answer of so many tokens to the same short question."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "hello world"}],
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        with self.client() as client:
            reply = client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        assert reply.json()["usage"]["completion_tokens"] == num_tokens
        return str(reply.json()["choices"][0]["message"]["content"])

    def family(self) -> list[psutil.Process]:
        """Return every process that belongs to this house, the supervisor first."""
        top = psutil.Process(self.process.pid)
        return [top, *top.children(recursive=True)]

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        with self.client() as client:
            lines = client.get("/metrics").text.splitlines()
        found = [float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name]
        assert found, f"no metric {name}"
        return sum(found)


def wait_for(condition: object, *, timeout_s: float, what: str) -> None:
    """Poll a callable until it is true; AssertionError after `timeout_s`."""
    assert callable(condition)
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.05)


@contextlib.contextmanager
def headrace_up(state_dir: Path, *arguments: str, environ: dict[str, str] | None = None) -> Iterator[House]:
    """Run `headrace up` until it is ready; on leaving, Ctrl-C and wait."""
    port = free_port()
    output = state_dir / "up.log"
    state_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "headrace", "up", f"--port={port}", f"--state-dir={state_dir}", *arguments]
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **PATIENT, **(environ or {})}, start_new_session=True
        )
    house = House(process, f"http://127.0.0.1:{port}", state_dir, output)
    try:
        wait_for(lambda: _ready(house), timeout_s=150, what=f"ready ({output})")
        yield house
    finally:
        family = house.family() if process.poll() is None else []
        process.send_signal(signal.SIGINT)
        try:
            process.wait(120)
        finally:
            _, alive = psutil.wait_procs(family, timeout=60)
            for left in alive:
                left.kill()


def _ready(house: House) -> bool:
    assert house.process.poll() is None, house.output.read_text()
    with contextlib.suppress(httpx.HTTPError), house.client(60.0) as client:
        return client.get("/health/ready").status_code == 200
    return False
