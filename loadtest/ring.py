"""What the ring adds: real desks over a real bus, and a replica that costs nothing.

    python -m loadtest.ring [--requests 400] [--concurrency 1] [--words 40] [--split]

The time from the HTTP request to the first text is then what edge, tokenizer, prefix desk, balancer and the way between
them cost (a chat request passes no history desk). Desks run in one process, as `headrace up` runs them, or (`--split`)
each in its own; the replica and the client in another; all share the machine's cores. Processor time and round trips to
the bus say more than the clock on a machine that has other work: both are printed for one request, round trips by the
server's own account (MONITOR).
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from loadtest.echo_replica import EchoReplica
from loadtest.house import MODEL, free_port, until_ready
from loadtest.monitor import BESIDE, watched
from loadtest.paced_runner import spoken_id
from loadtest.plain_client import PlainClient
from loadtest.report import percentile
from loadtest.workload import chat_bodies
from wire.bus import Bus
from wire.bus.embedded import embedded_server
from wire.settings import default_model_dir
from wire.vocabulary import Vocabulary

DESKS = "history,tokenizer,prefix,balancer,edge"
COUNTED = 40


class Ring:
    """A running ring without a model, and what its processes have used."""

    def __init__(self, url: str, port: int, desks: Sequence[subprocess.Popen[bytes]]) -> None:
        self.url, self.port = url, port
        self._desks = desks

    def cpu_s(self) -> float:
        """Return the processor time that the desks have used so far."""
        return sum(_cpu_s(desk.pid) for desk in self._desks)

    async def load(self, bodies: Iterable[dict[str, Any]], concurrency: int) -> list[float]:
        """Send requests, so many at a time; return the seconds to their first text."""
        times: list[float] = []
        rest = iter(bodies)

        async def user() -> None:
            async with PlainClient.open(self.port) as client:
                times.extend([await client.ttft_s(body) for body in rest])

        async with anyio.create_task_group() as users:
            for _ in range(concurrency):
                users.start_soon(user)
        return times

    async def trips(self, bodies: Sequence[dict[str, Any]]) -> Counter[str]:
        """Send requests one by one; return the commands that reached the server meanwhile, but for heartbeats."""
        async with watched(self.url) as commands:
            await self.load(bodies, 1)
        return Counter(name for name in commands if name not in BESIDE)


@asynccontextmanager
async def running(options: argparse.Namespace) -> AsyncIterator[Ring]:
    """Start a ring without a model and warm it up."""
    port = free_port()
    vocabulary = Vocabulary.load(Path(default_model_dir()) / MODEL)
    token_id = spoken_id(vocabulary)
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        async with embedded_server(folder) as url, Bus.open(url) as bus, anyio.create_task_group() as tasks:
            await tasks.start(EchoReplica(bus, MODEL, token_id).serve)
            desks = _start_desks(DESKS.split(",") if options.split else [DESKS], url, port)
            try:
                await until_ready(port)
                yield Ring(url, port, desks)
            finally:
                for desk in desks:
                    desk.terminate()
                for desk in desks:
                    desk.wait(30)
            tasks.cancel_scope.cancel()


def _start_desks(roles: Sequence[str], url: str, port: int) -> list[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "headrace", "serve"]
    own = {role: [f"--port={port}"] if "edge" in role else [] for role in roles}
    common = [f"--redis-url={url}", f"--models={MODEL}", "--log-level=warning"]
    return [subprocess.Popen([*command, role, *common, *own[role]]) for role in roles]


def _cpu_s(pid: int) -> float:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


async def measure(options: argparse.Namespace) -> tuple[list[float], float, float, Counter[str]]:
    """Load a ring; return TTFTs, requests a second, the desks' processor time, and the trips of `COUNTED` requests."""
    words = (options.words, options.words)
    bodies = chat_bodies(MODEL, seed=0, input_words=words, output_tokens=(1, 1))
    async with running(options) as ring:
        await ring.load([next(bodies) for _ in range(50)], options.concurrency)
        wanted = [next(bodies) for _ in range(options.requests)]
        before, started = ring.cpu_s(), time.perf_counter()
        times = await ring.load(wanted, options.concurrency)
        rate, used_s = len(times) / (time.perf_counter() - started), ring.cpu_s() - before
        return times, rate, used_s, await ring.trips([next(bodies) for _ in range(COUNTED)])


def main() -> int:
    """Print TTFT added by the ring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--words", type=int, default=40, help="words of each prompt")
    parser.add_argument("--split", action="store_true", help="each desk in a process of its own")
    options = parser.parse_args()
    times, rate, used_s, trips = anyio.run(measure, options, backend_options={"use_uvloop": True})
    ttft = [1000 * value for value in times]
    print(f"{platform.machine()}, {options.concurrency} at a time, prompts of {options.words} words")  # noqa: T201
    print(f"{len(ttft)} requests, {rate:.0f} a second")  # noqa: T201
    print(f"TTFT added by the ring: p50 {percentile(ttft, 50):.2f} ms, p99 {percentile(ttft, 99):.2f} ms")  # noqa: T201
    print(f"processor time of the desks: {1000 * used_s / len(times):.2f} ms a request")  # noqa: T201
    each = ", ".join(f"{name} {count / COUNTED:.1f}" for name, count in trips.most_common())
    print(f"round trips to the bus: {trips.total() / COUNTED:.1f} a request ({each})")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
