"""What the ring adds: real desks over a real bus, and a replica that costs nothing.

    python -m loadtest.ring [--requests 400] [--concurrency 1] [--words 40]

The time from the HTTP request to the first text is then what edge, history, tokenizer, prefix desk, balancer and five
hops cost. Desks run in one process, as `headrace up` runs them, the replica and the client in another; all share the
machine's cores.
"""

from __future__ import annotations

import argparse
import platform
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
import httpx

from loadtest.bench import closed_loop
from loadtest.client import Sample, new_client
from loadtest.echo_replica import EchoReplica
from loadtest.report import percentile
from loadtest.workload import chat_bodies
from wire.bus import Bus
from wire.bus.embedded import embedded_server
from wire.settings import default_model_dir
from wire.vocabulary import Vocabulary

MODEL = "smollm2-135m-instruct"
DESKS = "history,tokenizer,prefix,balancer,edge"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _until_ready(client: httpx.AsyncClient) -> None:
    with anyio.fail_after(60):
        while True:
            try:
                if (await client.get("/health/ready")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await anyio.sleep(0.05)


async def measure(options: argparse.Namespace) -> list[Sample]:
    """Start a ring without a model, load it, return the samples."""
    port = _free_port()
    vocabulary = Vocabulary.load(Path(default_model_dir()) / MODEL)
    token_id = next(n for n in range(vocabulary.size) if vocabulary.token_bytes(n) == b" river")
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        async with embedded_server(folder) as url, Bus.open(url) as bus, anyio.create_task_group() as tasks:
            await tasks.start(EchoReplica(bus, MODEL, token_id).serve)
            command = [sys.executable, "-m", "headrace", "serve", DESKS, f"--redis-url={url}", f"--port={port}"]
            desks = subprocess.Popen([*command, "--models", MODEL])  # noqa: ASYNC220 - starts at once
            try:
                async with new_client(f"http://127.0.0.1:{port}", options.concurrency, None) as client:
                    await _until_ready(client)
                    words = (options.words, options.words)
                    bodies = chat_bodies(MODEL, seed=0, input_words=words, output_tokens=(1, 1))
                    await closed_loop(client, [next(bodies) for _ in range(50)], options.concurrency)
                    wanted = [next(bodies) for _ in range(options.requests)]
                    samples = await closed_loop(client, wanted, options.concurrency)
            finally:
                desks.terminate()
                desks.wait(30)
            tasks.cancel_scope.cancel()
    return samples


def main() -> int:
    """Print TTFT added by the ring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--words", type=int, default=40, help="words of each prompt")
    options = parser.parse_args()
    samples = anyio.run(measure, options)
    failed = [sample.error for sample in samples if sample.error]
    ttft = [1000 * sample.ttft_s for sample in samples if not sample.error]
    print(f"{platform.machine()}, {options.concurrency} at a time, prompts of {options.words} words")  # noqa: T201
    print(f"{len(ttft)} requests, {len(failed)} failed {failed[:1]}")  # noqa: T201
    print(f"TTFT added by the ring: p50 {percentile(ttft, 50):.2f} ms, p99 {percentile(ttft, 99):.2f} ms")  # noqa: T201
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
