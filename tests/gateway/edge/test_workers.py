"""Several edges on one port: all serve, one that is stopped refuses nobody and loses no stream, and comes back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.to_thread
import httpx
import psutil
import pytest

from tests.gateway.edge.asks import ASK, CHAT
from tests.ports import free_port
from tests.processes import command_of
from tests.ring import Ring
from tests.script import Piece, say

pytestmark = pytest.mark.anyio


class Workers:
    """`headrace serve edge --workers 2`, and a look at each through its metrics port."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, ports: tuple[int, int]) -> None:
        self.process, self.ports = process, ports
        self.url = f"http://127.0.0.1:{port}"

    async def metrics(self, number: int) -> dict[str, float]:
        """Sums by name; {} while it does not answer."""
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            try:
                text = (await client.get(f"http://127.0.0.1:{self.ports[number]}/metrics")).text
            except httpx.TransportError:
                return {}
        found: dict[str, float] = {f"name edge-{number}": text.count(f'headrace_process{{name="edge-{number}"}} 1.0')}
        for line in (line for line in text.splitlines() if not line.startswith("#")):
            name = line.split("{")[0].split(" ")[0]
            found[name] = found.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
        return found

    async def ask(self) -> int:
        """One request over a connection of its own; returns the status."""
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=60) as client:
            return (await client.post(CHAT, json={**ASK, "max_tokens": 1})).status_code

    def pid(self, number: int) -> int:
        for child in psutil.Process(self.process.pid).children():
            if f"--process-name=edge-{number}" in command_of(child):
                return int(child.pid)
        raise AssertionError(f"edge-{number} does not run")


@contextmanager
def workers(ring: Ring, bus_url: str) -> Iterator[Workers]:
    port, metrics_port = free_port(), free_port()
    command = [sys.executable, "-m", "headrace", "serve", "edge", "--workers=2", f"--port={port}"]
    place = [f"--redis-url={bus_url}", f"--models={ring.model_path.name}", f"--model-dir={ring.model_path.parent}"]
    with subprocess.Popen(
        [*command, *place, f"--metrics-port={metrics_port}", "--drain-s=150", "--log-level=warning"]
    ) as process:
        try:
            yield Workers(process, port, (metrics_port, metrics_port + 1))
        finally:
            process.kill()


async def until(condition: Any) -> None:
    with anyio.fail_after(150):
        while not await condition():
            await anyio.sleep(0.02)


async def test_workers_share_the_port_and_one_that_is_stopped_costs_nobody_anything(ring: Ring, bus_url: str) -> None:
    with workers(ring, bus_url) as house:

        async def both(name: str) -> bool:
            return all([(await house.metrics(number)).get(name, 0) >= 1 for number in (0, 1)])

        for number in (0, 1):
            await until(lambda number=number: _named(house, number))
        await until(lambda: both("headrace_replicas_ready"))
        for _ in range(200):
            assert await house.ask() == 200
            if await both("headrace_requests_total"):
                break
        assert await both("headrace_requests_total")

        go_on = anyio.Event()
        ring.replica.play(*say("one "), Piece(b"two ", after=go_on))
        async with (
            httpx.AsyncClient(base_url=house.url, trust_env=False, timeout=60) as client,
            client.stream("POST", CHAT, json={**ASK, "stream": True}) as reply,
        ):
            lines = reply.aiter_lines()
            while "one " not in await anext(lines):
                pass
            [busy] = [n for n in (0, 1) if (await house.metrics(n))["headrace_inflight_requests"]]
            stopped = psutil.Process(house.pid(busy))
            stopped.terminate()
            ring.replica.play(*say("hello"))
            # Its listener closes a moment after the signal; from then on the sibling has every new connection.
            await until(lambda: _is_draining(house, busy))
            assert [await house.ask() for _ in range(20)] == [200] * 20
            go_on.set()
            rest = [line async for line in lines]
        assert any("two" in line for line in rest)
        assert "data: [DONE]" in rest
        await anyio.to_thread.run_sync(lambda: psutil.wait_procs([stopped], timeout=60))
        await until(lambda: _named(house, busy))
        assert house.pid(busy) != stopped.pid  # started again

        family = psutil.Process(house.process.pid).children(recursive=True)
        house.process.terminate()
        assert await anyio.to_thread.run_sync(lambda: house.process.wait(60)) == 0
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive


async def _named(house: Workers, number: int) -> bool:
    return (await house.metrics(number)).get(f"name edge-{number}") == 1


async def _is_draining(house: Workers, number: int) -> bool:
    listening = {
        connection.laddr.port
        for connection in psutil.Process(house.pid(number)).net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    return int(house.url.rsplit(":", 1)[1]) not in listening


def test_only_edges_share_a_port() -> None:
    command = [sys.executable, "-m", "headrace", "serve", "history", "--workers=2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--workers" in done.stderr
