"""What an edge costs beside its floor and a peer, with a model that costs nothing:

    python -m loadtest.overhead [--streams 1,64,512,2000] [--tokens 64] [--window 16] [--rounds 1] [--litellm PYTHON]

Three servers answer the same requests in turn: Headrace (every desk a process, a replica that gives each stream one
token a step), bare uvicorn with sse-starlette sending the same events, and, given an interpreter that has it, LiteLLM's
proxy in front of that. Events per second are counted by the clock and per second of the serving process's own
processor time: on a machine that all share, the second says what one such process could do with a core to itself. Of
several rounds the one with the least processor time is shown.

The replica says a window of steps at once, as the floor waits for nobody either; `--window 1` shows tokens that come
one by one. Headrace's row also has what its bus spent on an event, in time and in commands.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import anyio
import psutil
import redis
from rich.console import Console
from rich.table import Table

from loadtest.house import MODEL, free_port, until_ready
from loadtest.paced_runner import spoken_id
from loadtest.processor import Spent, family, spent
from loadtest.report import percentile
from loadtest.streams import Stream, read_streams
from loadtest.workload import chat_bodies
from wire.bus.embedded import embedded_server
from wire.settings import default_model_dir
from wire.vocabulary import Vocabulary

DESKS = ("history", "tokenizer", "prefix", "balancer")
MAX_STREAMS = 4096


class Server(NamedTuple):
    """A server under test: where it listens, and the process whose time counts; the bus it has beside it."""

    name: str
    port: int
    process: psutil.Process
    bus_url: str = ""


@contextlib.contextmanager
def child(*command: str, **environ: str) -> Iterator[psutil.Process]:
    """Run a process for the time of a block."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **environ})
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


@contextlib.asynccontextmanager
async def headrace(stack: contextlib.AsyncExitStack, window: int) -> AsyncIterator[Server]:
    """Run the ring, each desk a process, and a stepping replica."""
    vocabulary = Vocabulary.load(Path(default_model_dir()) / MODEL)
    token_id = spoken_id(vocabulary)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hr-"))
    url = await stack.enter_async_context(embedded_server(Path(folder)))
    port = free_port()
    common = (f"--redis-url={url}", f"--models={MODEL}", "--log-level=warning")
    serve = (sys.executable, "-m", "headrace", "serve")
    stack.enter_context(child(*serve, ",".join(DESKS), *common))
    edge = stack.enter_context(child(*serve, "edge", *common, f"--port={port}", f"--max-inflight={MAX_STREAMS}"))
    replica = (sys.executable, "-m", "loadtest.stepping_replica", url, MODEL, str(token_id), str(window))
    stack.enter_context(child(*replica))
    await until_ready(port)
    yield Server("headrace", port, edge, url)


@contextlib.asynccontextmanager
async def floor(stack: contextlib.AsyncExitStack) -> AsyncIterator[Server]:
    """Run uvicorn with sse-starlette and nothing else."""
    port = free_port()
    process = stack.enter_context(child(sys.executable, "-m", "loadtest.floor_server", str(port)))
    await until_ready(port)
    yield Server("uvicorn + sse-starlette", port, process)


@contextlib.asynccontextmanager
async def litellm(stack: contextlib.AsyncExitStack, python: str, behind: Server) -> AsyncIterator[Server]:
    """Run LiteLLM's proxy, one worker, in front of the floor."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hr-")))
    config = folder / "config.yaml"
    config.write_text(
        f"model_list:\n- model_name: {MODEL}\n  litellm_params:\n    model: openai/{MODEL}\n"
        f"    api_base: http://127.0.0.1:{behind.port}/v1\n    api_key: none\n"
    )
    port = free_port()
    command = (str(Path(python).parent / "litellm"), "--config", str(config), "--port", str(port))
    environ = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
    process = stack.enter_context(child(*command, "--num_workers", "1", "--telemetry", "False", **environ))
    await until_ready(port, "/health/readiness")
    yield Server("LiteLLM proxy", port, process)


class Outcome(NamedTuple):
    """One run: streams, wall time, what server and bus have spent, and the server's growth with all streams open."""

    streams: list[Stream]
    wall_s: float
    server: Spent
    bus: Spent
    num_commands: int
    grown_bytes: int

    @property
    def num_events(self) -> int:
        """Return the events of all streams."""
        return sum(stream.num_events for stream in self.streams)


def _books(server: Server) -> tuple[Spent, Spent, int]:
    """Return what a server and its bus have spent so far, and how many commands the bus has had."""
    if not server.bus_url:
        return spent(family(server.process.pid)), Spent(), 0
    with redis.Redis.from_url(server.bus_url) as client:
        about = client.info()
    bus = spent([psutil.Process(about["process_id"])])
    return spent(family(server.process.pid)), bus, about["total_commands_processed"]


async def run(server: Server, num_streams: int, num_tokens: int) -> Outcome:
    """Read so many streams at once from a server."""
    made = chat_bodies(MODEL, seed=num_streams, input_words=(8, 8), output_tokens=(num_tokens, num_tokens))
    bodies = [{**next(made), "max_tokens": num_tokens} for _ in range(num_streams)]
    memory = server.process.memory_info().rss
    most = memory
    before, started = _books(server), time.perf_counter()

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, server.process.memory_info().rss)
            await anyio.sleep(0.05)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        streams = await read_streams(server.port, bodies)
        tasks.cancel_scope.cancel()
    wall_s, after = time.perf_counter() - started, _books(server)
    return Outcome(streams, wall_s, after[0] - before[0], after[1] - before[1], after[2] - before[2], most - memory)


def row(server: Server, outcome: Outcome) -> list[str]:
    """Return a line of the table."""
    events, used = outcome.num_events, outcome.server
    ttft = [1e3 * stream.ttft_s for stream in outcome.streams]
    gaps = [1e3 * gap for stream in outcome.streams for gap in stream.gaps_s] or [0.0]
    failed = sum(not stream.done for stream in outcome.streams)
    bus = f"{1e6 * outcome.bus.cpu_s / events:.0f} us, {outcome.num_commands / events:.2f}" if server.bus_url else ""
    return [
        server.name + (f" ({failed} failed)" if failed else ""),
        str(len(outcome.streams)),
        f"{events / outcome.wall_s:,.0f}",
        f"{events / max(used.cpu_s, 0.01):,.0f}",
        f"{1e6 * used.user_s / events:.1f} + {1e6 * used.system_s / events:.1f}",
        f"{used.switches / events:.2f}",
        bus,
        f"{len(outcome.streams) / max(used.cpu_s, 0.01):,.0f}",
        f"{percentile(ttft, 50):.1f} / {percentile(ttft, 99):.1f}",
        f"{percentile(gaps, 50):.2f} / {percentile(gaps, 99):.2f}",
        f"{outcome.grown_bytes / len(outcome.streams) / 1e3:.0f}",
    ]


async def measure(options: argparse.Namespace, table: Table) -> None:
    """Fill the table: all servers stand, and answer in turn."""
    async with contextlib.AsyncExitStack() as stack:
        base = await stack.enter_async_context(floor(stack))
        servers = [await stack.enter_async_context(headrace(stack, options.window)), base]
        if options.litellm:
            servers.append(await stack.enter_async_context(litellm(stack, options.litellm, base)))
        for server in servers:
            await run(server, 8, 8)
        for num_streams in (int(item) for item in options.streams.split(",")):
            # One stream alone is over at once: as many in a row as make a figure.
            num_tokens = options.tokens * (64 if num_streams == 1 else 1)
            best: dict[Server, Outcome] = {}
            for server in servers * options.rounds:
                outcome = await run(server, num_streams, num_tokens)
                if server not in best or outcome.server.cpu_s < best[server].server.cpu_s:
                    best[server] = outcome
            for server, outcome in best.items():
                table.add_row(*row(server, outcome))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="1,64,512,2000")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--window", type=int, default=16, help="steps that the replica says at once")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--litellm", default="", help="an interpreter whose environment has litellm[proxy]")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    table = Table(title=f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    heads = ("server", "streams", "events/s", "events per CPU second", "us an event, user + system", "sleeps an event")
    more = ("bus: time, commands an event", "requests per CPU second", "TTFT p50 / p99, ms", "gap p50 / p99, ms")
    for head in (*heads, *more, "kB a stream"):
        table.add_column(head)
    anyio.run(measure, options, table, backend_options={"use_uvloop": True})
    Console(width=180).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
