"""What a token costs between engine and client: processor time and sleeps of each process, and commands on the bus.

    python -m loadtest.token_path [--streams 1,16] [--tokens 512] [--step-ms 4] [--rounds 3] [--model-dir DIR]

`headrace up` with a runner that sleeps for the length of a step and says one token in every stream: scheduler, pipe,
service, bus, edge and HTTP are real. The kernel's account of processor time holds on a machine that is not idle, where
a clock does not, though caches that others empty show in it too. Of several rounds the cheapest is shown.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from pathlib import Path
from typing import NamedTuple

import anyio
import redis
from rich.console import Console
from rich.table import Table

from loadtest.house import MODEL, house
from loadtest.processor import Spent, processes, spent
from loadtest.streams import read_streams
from loadtest.workload import chat_bodies
from wire.bus.embedded import running_url
from wire.settings import default_model_dir


class Round(NamedTuple):
    """What one round took: of each process, commands on the bus, and seconds."""

    used: dict[str, Spent]
    num_commands: int
    wall_s: float

    @property
    def cpu_s(self) -> float:
        """Return the processor time of all but the engine, which thinks for itself too."""
        return sum(spent.cpu_s for name, spent in self.used.items() if name != "engine")


def measure(url: str, bus_url: str, num_streams: int, num_tokens: int) -> Round:
    """Read so many streams at once."""
    port = int(url.rpartition(":")[2])
    made = chat_bodies(MODEL, seed=num_streams, input_words=(8, 8), output_tokens=(num_tokens, num_tokens))
    groups = processes()
    with redis.Redis.from_url(bus_url) as client:
        before = {role: spent(group) for role, group in groups.items()}
        commands, started = client.info("stats")["total_commands_processed"], time.perf_counter()
        streams = anyio.run(
            read_streams, port, [next(made) for _ in range(num_streams)], backend_options={"use_uvloop": True}
        )
        wall_s = time.perf_counter() - started
        used = {role: spent(group) - before[role] for role, group in groups.items()}
        commands = client.info("stats")["total_commands_processed"] - commands - 1
    if not all(stream.done for stream in streams):
        raise SystemExit("a stream ended early")
    return Round(used, commands, wall_s)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="1,16")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--step-ms", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model-dir", type=Path, default=Path(default_model_dir()) / MODEL)
    options = parser.parse_args()
    os.environ |= {"HEADRACE_RUNNER": "loadtest.paced_runner:load", "LOADTEST_STEP_MS": str(options.step_ms)}
    title = (
        f"{platform.machine()}, {os.cpu_count()} cores, steps of {options.step_ms:g} ms, us a token (sleeps a token)"
    )
    table = Table(
        "streams", "engine", "model service", "bus", "edge and desks", "client", "but the engine", title=title
    )
    for head in ("commands", "us a token by the clock", "load"):
        table.add_column(head)
    with house(options.model_dir) as (url, state):
        bus_url = running_url(state)
        assert bus_url is not None, "the house has a bus"
        measure(url, bus_url, 2, 8)
        for num_streams in (int(item) for item in options.streams.split(",")):
            found = [measure(url, bus_url, num_streams, options.tokens) for _ in range(options.rounds)]
            best, count = min(found, key=lambda one: one.cpu_s), num_streams * options.tokens
            cells = [
                f"{1e6 * best.used[role].cpu_s / count:.0f} ({best.used[role].switches / count:.2f})"
                for role in ("engine", "model service", "bus", "edge and desks", "client")
            ]
            total, wall = f"{1e6 * best.cpu_s / count:.0f}", f"{1e6 * best.wall_s / count:.0f}"
            rest = (f"{best.num_commands / count:.2f}", wall, f"{os.getloadavg()[0]:.1f}")
            table.add_row(str(num_streams), *cells, total, *rest)
    Console(width=160).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
