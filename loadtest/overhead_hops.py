"""What a hop costs, with desks that do nothing: bursts of jobs through four desks of one process, as in `headrace up`.

    python -m loadtest.overhead_hops [--jobs 64] [--rounds 40]

Processor time for each job: of this process (admission, four hops, the end) the tenth percentile and the median of the
rounds, since on a machine that has other work the quiet rounds say more; of the bus the mean, for its clock is coarse.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
import psutil

from loadtest.processor import spent
from loadtest.report import percentile
from wire.bus import Bus
from wire.bus.embedded import embedded_server
from wire.bus.neighbours import Neighbours
from wire.desk import serve_desk
from wire.messages import ChatMessage, Job, Prompt, Request, pack_ids
from wire.step import Step

DESKS = ("first", "second", "third", "fourth")
_REQUEST = Request(model="m", messages=(ChatMessage(role="user", content="some words " * 20),))
_PROMPT = Prompt(token_ids=pack_ids(range(60)), num_tokens=60)


class Cost(NamedTuple):
    """Seconds of processor time for each job: of the desks in each round, of the bus in all of them."""

    desks_s: list[float]
    bus_s: float


def _stream(name: str) -> str:
    return f"hr:{{p0}}:{name}"


async def _serve(bus: Bus, name: str, onward: str, tasks: Any) -> None:
    fields = {"prompt": _PROMPT} if name == DESKS[1] else {}

    async def handle(_job: Job, _record: dict[str, Any]) -> Step:
        return Step(to=_stream(onward), fields=fields)

    serve = functools.partial(serve_desk, bus, name=name, streams=[_stream(name)], consumer="one")
    await tasks.start(functools.partial(serve, handle=handle, fields=("request",)))


@asynccontextmanager
async def _edge(url: str) -> AsyncIterator[Bus]:
    """Open a bus of somebody who is no neighbour of the desks: an edge before them and a replica behind."""
    async with Bus.open(url) as bus:
        bus.neighbours = Neighbours()
        yield bus


async def measure(num_jobs: int, num_rounds: int) -> Cost:
    """Send bursts through the desks."""
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        async with embedded_server(folder) as url, Bus.open(url) as bus, anyio.create_task_group() as tasks:
            for name, onward in zip(DESKS, (*DESKS[1:], "end"), strict=True):
                await _serve(bus, name, onward, tasks)
            async with _edge(url) as edge:
                about = await edge.route.call("", "INFO", "server")
                server = psutil.Process(int(about.partition(b"process_id:")[2].split()[0]))
                await _round(edge, num_jobs)
                before_s = spent([server]).cpu_s
                desks_s = [await _round(edge, num_jobs) for _ in range(num_rounds)]
                bus_s = spent([server]).cpu_s - before_s
            tasks.cancel_scope.cancel()
    return Cost(desks_s, bus_s / num_rounds / num_jobs)


def _job(deadline: float) -> Job:
    return Job(request_id=secrets.token_hex(16), partition=0, model="m", edge="e", deadline=deadline)


async def _round(edge: Bus, num_jobs: int) -> float:
    end = edge.consumer(_stream("end"), group="end", name="end")
    jobs = [_job(time.time() + 600) for _ in range(num_jobs)]
    admit = functools.partial(edge.admit, fields={"request": _REQUEST}, to=_stream(DESKS[0]), ttl_s=600)
    before_s = time.process_time()
    async with anyio.create_task_group() as tasks:
        for job in jobs:
            tasks.start_soon(admit, job)
        num_ended = 0
        while num_ended < num_jobs:
            for delivery in await end.read(num_jobs):
                tasks.start_soon(edge.finish, delivery)
                num_ended += 1
    return (time.process_time() - before_s) / num_jobs


def main() -> int:
    """Print what a job costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=64, help="jobs that come at the same instant")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    cost = anyio.run(measure, options.jobs, options.rounds, backend_options={"use_uvloop": True})
    quiet, middle = (1e6 * percentile(cost.desks_s, at) for at in (10, 50))
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; us a job")  # noqa: T201
    print(f"desks: p10 {quiet:.0f}, median {middle:.0f}; bus: {1e6 * cost.bus_s:.0f}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
