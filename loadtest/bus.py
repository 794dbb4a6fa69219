"""What a hop of the ring costs: `python -m loadtest.bus [--url URL]`.

One process admits jobs, another serves four desks in a row, as on a laptop. A hop is the time between two publishes of
a job: it waits, is read, its record is read, its handler runs (and does nothing), it is handed on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import msgspec

from wire import topics
from wire.bus import Bus, embedded_server
from wire.desk import serve_desk
from wire.messages import Cancel, Job, Prompt, Request
from wire.step import Step

RING = (topics.history(0), topics.tokenizer(0, "m"), topics.prefix(0, "m"), topics.balancer(0, "m"))
END = topics.replica(0, "end")


async def desks(url: str) -> None:
    """Serve the four desks until killed."""
    async with Bus.open(url) as bus, anyio.create_task_group() as tasks:
        for stream, onward in itertools.pairwise((*RING, END)):
            tasks.start_soon(_desk, bus, stream, onward)


async def _desk(bus: Bus, stream: str, onward: str) -> None:
    async def handle(_job: Job, _record: dict[str, Any]) -> Step:
        return Step(to=onward)

    name = stream.split(":")[2]
    await serve_desk(bus, name=name, streams=[stream], consumer="one", handle=handle, fields=["request"])


@asynccontextmanager
async def _desks_beside(url: str) -> AsyncIterator[None]:
    command = [sys.executable, "-m", "loadtest.bus", "--url", url, "--desks"]
    async with await anyio.open_process(command, stdin=None, stdout=None, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def _quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[len(ordered) * 99 // 100]}


async def hops(bus: Bus, number: int, prompt_bytes: int) -> dict[str, float]:
    """Send jobs round one after another; milliseconds a hop from the second desk on (the first awaits admission)."""
    fields: dict[str, msgspec.Struct] = {"request": Request(model="m")}
    if prompt_bytes:
        fields["prompt"] = Prompt(token_ids=bytes(prompt_bytes), num_tokens=prompt_bytes // 4)
    reader = bus.consumer(END, group="end", name="one")
    times: list[float] = []
    for at in range(number + 20):
        job = Job(request_id=f"{prompt_bytes}-{at}", partition=0, model="m", edge="none", deadline=time.time() + 60)
        await bus.admit(job, fields, to=RING[0], ttl_s=60)
        [delivery] = await reader.read(1)
        assert isinstance(delivery.message, Job)
        # The wait runs from where the desk before began its hand-off, so that wait + work is publish to publish.
        spent = delivery.message.timings_ms
        times.append(sum(ms for name, ms in spent.items() if not name.startswith("history.")) / (len(RING) - 1))
        await bus.finish(delivery)
    return _quantiles(times[20:])


async def ring_rate(bus: Bus, number: int) -> float:
    """Admit many jobs at once; jobs a second that come out at the end."""
    reader = bus.consumer(END, group="end", name="one")
    started = time.perf_counter()

    async def admit(first: int) -> None:
        for at in range(first, number, 8):
            job = Job(request_id=f"rate-{at}", partition=0, model="m", edge="none", deadline=time.time() + 60)
            await bus.admit(job, {"request": Request(model="m")}, to=RING[0], ttl_s=60)

    async with anyio.create_task_group() as tasks:
        for first in range(8):
            tasks.start_soon(admit, first)
        left = number
        while left:
            for delivery in await reader.read(64):
                await bus.finish(delivery)
                left -= 1
    return number / (time.perf_counter() - started)


async def send_rates(bus: Bus, number: int) -> dict[str, float]:
    """Publish to inboxes; messages a second, one after another, 16 callers at once, and 32 in one write."""
    message = Cancel(request_id="r" * 24, attempt=0)

    async def send(count: int) -> None:
        for _ in range(count):
            await bus.send("hr:edge:load", message, maxlen=10**9)

    rates: dict[str, float] = {}
    for callers in (1, 16):
        started = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for _ in range(callers):
                tasks.start_soon(send, number // callers)
        rates[f"{callers} callers"] = number / (time.perf_counter() - started)
    started = time.perf_counter()
    for _ in range(number // 32):
        await bus.send_many([("hr:edge:load", message)] * 32, maxlen=10**9)
    rates["32 a write"] = number / (time.perf_counter() - started)
    return rates


async def measure(url: str | None, number: int) -> dict[str, Any]:
    """Run all measurements on a server of our own, or on the one named."""
    async with AsyncExitStack() as stack:
        if url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            url = await stack.enter_async_context(embedded_server(folder))
        bus = await stack.enter_async_context(Bus.open(url))
        await stack.enter_async_context(_desks_beside(url))
        return {
            "hop_ms": await hops(bus, number, 0),
            "hop_ms_with_512_kB_in_the_record": await hops(bus, number // 4, 512 * 1024),
            "jobs_per_s_round_four_desks": await ring_rate(bus, number),
            "messages_per_s": await send_rates(bus, 4 * number),
        }


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a bus to measure; without it an embedded server is started")
    parser.add_argument("--number", type=int, default=2_000, help="jobs to send round")
    parser.add_argument("--desks", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    loop = {"use_uvloop": True}
    if given.desks:
        anyio.run(desks, given.url, backend_options=loop)
    else:
        result = anyio.run(measure, given.url, given.number, backend_options=loop)
        sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
