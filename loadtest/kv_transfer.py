"""What it is worth to fetch KV blocks instead of computing them, and to keep prompts away from running answers.

    python -m loadtest.kv_transfer [--model smollm2-135m-instruct] [--tokens 1000] [--rounds 5] [--streams 4]

First: two replicas that take turns get the same new prompt one after the other; one computes it, the other fetches it.
Floor of a fetch: its bytes at the speed of a unix socket between two threads of this machine. Second: gaps between
tokens of running streams while long prompts arrive, with two replicas that do all, and with one for each part.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx

from loadtest.house import house
from loadtest.start import say
from wire.settings import default_model_dir

_PIECE = 1 << 20
_START_S = 170.0
_HOUSES = {"two replicas": ("--replicas=2",), "prefill + decode": ("--replicas=1", "--prefill-replicas=1")}


def prompt_ids(count: int, seed: int) -> list[int]:
    """Return a prompt that nobody has seen."""
    draw = random.Random(seed)
    return [draw.randrange(1000, 40_000) for _ in range(count)]


def socket_bytes_per_s(total: int = 1 << 28) -> float:
    """Return how fast bytes go through a unix socket."""
    left, right = socket.socketpair()
    memory = memoryview(bytearray(_PIECE))

    def send() -> None:
        for _ in range(total // _PIECE):
            left.sendall(memory)

    with left, right:
        thread = threading.Thread(target=send)
        started, received = time.perf_counter(), 0
        thread.start()
        while received < total:
            received += right.recv_into(memory)
        thread.join()
        return total / (time.perf_counter() - started)


@contextlib.contextmanager
def two_replicas(model: str, *flags: str, policy: str) -> Iterator[str]:
    """Run `headrace up` with flags that make two replicas; yields its URL."""
    ready = f'headrace_replicas_ready{{model="{model}"}} 2'
    with house(
        Path(default_model_dir()) / model, *flags, environ={"HEADRACE_BALANCER_POLICY": policy},
        is_ready=lambda url: ready in _metrics(url), timeout_s=_START_S,
    ) as (url, _):  # fmt: skip
        time.sleep(2.0)  # heartbeats have told everybody everything
        yield url


def _metrics(url: str) -> str:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/metrics", trust_env=False).text
    return ""


def ask(url: str, model: str, ids: list[int]) -> dict[str, Any]:
    """Return the bill of one token after a prompt."""
    body = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    reply = httpx.post(f"{url}/v1/completions", json=body, timeout=300, trust_env=False).raise_for_status()
    bill: dict[str, Any] = reply.json()["usage"]["headrace"]
    return bill


def fetch_against_compute(model: str, num_tokens: int, rounds: int) -> None:
    """Print what computing and fetching the same prompt take."""
    with two_replicas(model, "--replicas=2", policy="round_robin") as url:
        ask(url, model, prompt_ids(num_tokens, 0)), ask(url, model, prompt_ids(num_tokens, 1))  # warm
        computed, fetched, tokens = [], [], 0
        for number in range(rounds):
            ids = prompt_ids(num_tokens, 100 + number)
            computed.append(ask(url, model, ids)["prefill_ms"])
            bill = ask(url, model, ids)
            tokens = max(tokens, bill["fetched_tokens"])
            if bill["fetched_tokens"]:
                fetched.append(bill["fetch_ms"])
        counts = {
            name: sum(float(line.rsplit(" ", 1)[1]) for line in _metrics(url).splitlines() if line.startswith(name))
            for name in ("headrace_replica_fetched_bytes_total", "headrace_replica_fetched_blocks_total")
        }
    compute_ms = statistics.median(computed)
    say(f"computing {num_tokens} tokens: {compute_ms:.1f} ms, {num_tokens / compute_ms * 1e3:,.0f} tok/s")
    if not fetched:
        say("nothing was fetched: by the balancer's prediction computing is as fast here")
        return
    fetch_ms = statistics.median(fetched)
    size = counts["headrace_replica_fetched_bytes_total"] / counts["headrace_replica_fetched_blocks_total"]
    num_bytes = size * tokens / 16
    floor_ms = num_bytes / socket_bytes_per_s() * 1e3
    say(
        f"fetching {tokens} of them: {fetch_ms:.1f} ms, {tokens / fetch_ms * 1e3:,.0f} tok/s, "
        f"{num_bytes / fetch_ms / 1e3:,.0f} MB/s; floor {floor_ms:.1f} ms ({num_bytes / 1e6:.1f} MB by a unix socket)"
    )


async def gaps(url: str, model: str, num_streams: int, num_tokens: int, rounds: int) -> list[float]:
    """Return the gaps in ms between tokens of running streams while `rounds` long prompts come one after another."""
    found: list[float] = []
    begun, all_begun = 0, anyio.Event()
    async with (
        httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as http,
        anyio.create_task_group() as tasks,
    ):

        async def stream(number: int) -> None:
            nonlocal begun
            body = {
                "model": model, "prompt": prompt_ids(24, number), "max_tokens": 4000, "ignore_eos": True,
                "temperature": 0, "stream": True,
            }  # fmt: skip
            last = 0.0
            async with http.stream("POST", "/v1/completions", json=body) as reply:
                async for line in reply.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    now = time.perf_counter()
                    begun += not last
                    if begun == num_streams:
                        all_begun.set()
                    if last:
                        found.append((now - last) * 1e3)
                    last = now

        for number in range(num_streams):
            tasks.start_soon(stream, 1000 + number)
        await all_begun.wait()
        found.clear()
        for number in range(rounds):
            body = {"model": model, "prompt": prompt_ids(num_tokens, 5000 + number), "max_tokens": 1}
            (await http.post("/v1/completions", json=body)).raise_for_status()
            await anyio.sleep(0.5)
        tasks.cancel_scope.cancel()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=4)
    chosen = parser.parse_args()
    fetch_against_compute(chosen.model, chosen.tokens, chosen.rounds)
    for name, flags in _HOUSES.items():
        with two_replicas(chosen.model, *flags, policy="prefix_and_load") as url:
            all_gaps = sorted(anyio.run(gaps, url, chosen.model, chosen.streams, chosen.tokens, chosen.rounds))
        p99 = all_gaps[int(len(all_gaps) * 0.99)]
        say(f"{name}: gaps between tokens p50 {statistics.median(all_gaps):.1f} ms, p99 {p99:.1f} ms, "
              f"longest {all_gaps[-1]:.1f} ms ({len(all_gaps)} gaps)")  # fmt: skip


if __name__ == "__main__":
    main()
