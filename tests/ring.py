"""The ring as users meet it but for the model: real desks, a real edge, the embedded server, a scripted replica.

`ring` is the usual one; `make_ring` takes settings of the edge, several partitions, or another tiny model.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio
import httpx
import msgspec
import pytest
from anyio.abc import TaskStatus
from openai import AsyncOpenAI

from cache_svc.history.service import serve as serve_history
from cache_svc.history.settings import HistorySettings
from cache_svc.prefix.service import serve as serve_prefix
from cache_svc.prefix.settings import PrefixSettings
from gateway.balancer.desk import BalancerDesk
from gateway.balancer.service import serve_streams as serve_balancer
from gateway.balancer.settings import BalancerSettings
from gateway.edge.service import serve as serve_edge
from gateway.edge.settings import EdgeSettings
from model_svc.service import serve as serve_model
from model_svc.settings import ModelSettings
from tests.ports import free_port
from tests.scripted_replica import ScriptedReplica
from tests.tiny_model import write_tiny_model
from tokenizer_svc.service import serve as serve_tokenizer
from tokenizer_svc.settings import TokenizerSettings
from wire.bus import Bus, BusOptions

MODEL = "tiny"
# What an edge gives up after a few seconds, which a busy machine may take.
_PATIENCE = (
    "gateway.edge.background._END_S",
    "gateway.edge.generation._RECORD_S",
    "gateway.edge.generation._SETTLE_S",
    "gateway.edge.service._LAST_S",
)


class Ring:
    """A running ring."""

    def __init__(
        self,
        url: str,
        bus: Bus,
        replica: ScriptedReplica,
        http: httpx.AsyncClient,
        model_path: Path,
        balancer: BalancerDesk,
    ) -> None:
        self.model_path = model_path
        self.balancer = balancer
        self.edge_scope = anyio.CancelScope()
        self.edge_stopped = anyio.Event()
        self.url = url
        self.bus = bus
        self.replica = replica
        self.http = http

    async def run_edge(
        self, settings: EdgeSettings, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve the edge until `stop_edge`."""
        self.settings = settings
        with self.edge_scope:
            await serve_edge(settings, task_status=task_status)
        self.edge_stopped.set()

    async def stop_edge(self) -> None:
        """Stop the edge as a signal would, and wait until it is gone."""
        self.edge_scope.cancel()
        await self.edge_stopped.wait()

    @asynccontextmanager
    async def another_edge(self, **changes: Any) -> AsyncIterator[httpx.AsyncClient]:
        """Run one more edge beside the first; yields a client of it."""
        settings = msgspec.structs.replace(self.settings, port=free_port(), **changes)
        url = f"http://127.0.0.1:{settings.port}"
        async with (
            anyio.create_task_group() as tasks,
            httpx.AsyncClient(base_url=url, timeout=60.0, trust_env=False) as http,
        ):
            await tasks.start(serve_edge, settings)
            await _until_ready(http)
            yield http
            tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def edge_process(self) -> AsyncIterator[tuple[subprocess.Popen[bytes], httpx.AsyncClient]]:
        """Run one more edge as a process that a test may kill."""
        settings = msgspec.structs.replace(self.settings, port=free_port())
        names = ("redis_url", "model_dir", "partitions", "port", "background_lease_s")
        environ = {f"HEADRACE_{name.upper()}": str(getattr(settings, name)) for name in names}
        environ["HEADRACE_MODELS"] = ",".join(settings.models)
        with subprocess.Popen([sys.executable, "-m", "gateway.edge"], env={**os.environ, **environ}) as process:
            try:
                url = f"http://127.0.0.1:{settings.port}"
                async with httpx.AsyncClient(base_url=url, timeout=60.0, trust_env=False) as http:
                    await _until_ready(http)
                    yield process, http
            finally:
                process.kill()

    def openai(self) -> Any:
        """Return OpenAI's own client for this ring. Untyped: what it returns are unions of thirty classes each."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    async def replica_loads(self) -> None:
        """Have the replica say that it loads; returns when the balancer has heard it, and places nothing any more."""
        self.replica.state = "loading"
        await self.replica.beat_once()
        with anyio.fail_after(60):
            while not self.balancer.fleet(self.model_path.name).is_loading:
                await anyio.sleep(0.005)

    async def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        text = (await self.http.get("/metrics")).text
        lines = (line for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name)
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    async def until_idle(self, timeout_s: float = 60.0) -> None:
        """Wait until no request is in flight, neither at the edge nor at the replica, and every bill is made up."""
        edge = ("headrace_inflight_requests", "headrace_ending_requests")  # a request is in one of them at any time
        with anyio.fail_after(timeout_s):
            while self.replica.running or any([await self.metric(name) for name in edge]):
                await anyio.sleep(0.005)


class MakeRing(Protocol):
    """Starts a ring for the time of a block."""

    def __call__(
        self, *, model_path: Path | None = None, encoders: Sequence[Path] = (), partitions: int = 1, **edge: Any
    ) -> AbstractAsyncContextManager[Ring]:
        """Start it; `edge` are fields of EdgeSettings. `encoders` beside the model get real replicas."""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level model directory without weights."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / MODEL)


@pytest.fixture
def make_ring(bus_url: str, bus_options: BusOptions, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRing:
    """A function that starts a ring."""
    for name in _PATIENCE:
        monkeypatch.setattr(name, 60.0)

    @asynccontextmanager
    async def make(
        *,
        model_path: Path | None = None,
        encoders: Sequence[Path] = (),
        partitions: int = 1,
        turn_wait_s: float = 30.0,
        **edge: Any,
    ) -> AsyncIterator[Ring]:
        path = model_path or tiny_model
        common: dict[str, Any] = {
            "redis_url": bus_url,
            "models": (path.name, *(encoder.name for encoder in encoders)),
            "model_dir": str(path.parent),
            "partitions": partitions,
        }
        patient = {"history_timeout_s": 60.0, "tokenize_timeout_s": 60.0, "request_timeout_s": 60.0}
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        settings = EdgeSettings(**{**common, **patient, "port": port, "drain_s": 0.0, **edge})
        async with (
            Bus.open(bus_url, bus_options) as bus,
            Bus.open(bus_url) as balancers_bus,  # as its service does
            anyio.create_task_group() as tasks,
        ):
            for serve, service_settings in _desks(common, turn_wait_s):
                await tasks.start(serve, service_settings)
            balancer_settings = BalancerSettings(**common)
            balancer = BalancerDesk(balancers_bus, balancer_settings)
            await tasks.start(serve_balancer, balancers_bus, balancer_settings, balancer)
            replica = ScriptedReplica(bus, path.name, path, partitions=partitions)
            async with httpx.AsyncClient(base_url=url, timeout=60.0, trust_env=False, verify=False) as http:
                running = Ring(url, bus, replica, http, path, balancer)
                await tasks.start(running.run_edge, settings)
                await tasks.start(replica.serve)
                for encoder in encoders:
                    await tasks.start(serve_model, ModelSettings(**common, model=encoder.name, drain_s=0.0))
                await _until_ready(http)
                yield running
            tasks.cancel_scope.cancel()

    return make


@pytest.fixture
async def ring(make_ring: MakeRing) -> AsyncIterator[Ring]:
    """A ring with default settings."""
    async with make_ring() as running:
        yield running


def _desks(common: dict[str, Any], turn_wait_s: float) -> list[tuple[Callable[..., Any], Any]]:
    return [
        (serve_history, HistorySettings(**common, history_turn_wait_s=turn_wait_s)),
        (serve_tokenizer, TokenizerSettings(**common)),
        (serve_prefix, PrefixSettings(**common)),
    ]


async def _until_ready(http: httpx.AsyncClient) -> None:
    with anyio.fail_after(60):
        while True:
            try:
                if (await http.get("/health/ready")).status_code == 200:
                    return
            except httpx.TransportError:  # it is still starting, or has just closed a connection that was idle
                pass
            await anyio.sleep(0.02)
