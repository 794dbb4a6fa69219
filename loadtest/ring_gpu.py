"""What the ring costs on a GPU: mixed requests and times to first token through the engine alone, and over HTTP.

    python -m loadtest.ring_gpu [--shape llama-8b] [--rounds 2] [--edges 1]

Writes a checkpoint of random weights once (see loadtest.start). The engine's process is driven through its pipe, as a
replica drives it; then `headrace up` serves the same model, with Valkey on this machine, and the same requests come as
streams of /v1/completions, prompts as token ids. Goal: at least 93 % of the engine's tokens per second, at most 3 ms
more to the first token.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
from anyio.abc import SocketStream

from loadtest.house import house
from loadtest.shapes import SHAPES
from loadtest.start import say, write_checkpoint
from model_svc.engine.request import EngineRequest
from model_svc.engine_link import EngineLink
from model_svc.engine_messages import Progress, Ready
from model_svc.settings import ModelSettings
from wire.messages import Prompt, SamplingParams, pack_ids

Job = tuple[list[int], int]  # prompt ids, answer tokens
_END_OF_BODY = b"0\r\n\r\n"
_START_S = 170.0
_PAUSE_S = 8.0
_NUM_SHORT = 24
_PARTS = ("tokenize_ms", "match_ms", "queue_ms", "prefill_ms", "ttft_ms")
LIMITS = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 16384}


def mixed(count: int, seed: int) -> list[Job]:
    """Return requests as those of loadtest.engine: 64 to 1,024 tokens in, 32 to 512 out."""
    draw = random.Random(seed)
    return [
        ([draw.randrange(40_000) for _ in range(draw.randint(64, 1024))], draw.randint(32, 512)) for _ in range(count)
    ]


def short(seed: int) -> list[Job]:
    """Return a request of 128 tokens for a few."""
    draw = random.Random(seed)
    return [([draw.randrange(40_000) for _ in range(128)], 4)]


# --- the engine alone ---


class EngineClient:
    """Asks an engine process through its pipe."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link
        self._sent = 0

    async def rest(self, seconds: float) -> None:
        """Send nothing for a while."""
        await anyio.sleep(seconds)

    async def ask(self, jobs: Sequence[Job]) -> tuple[float, float]:
        """Send all at once; return seconds to the first token and to the end of all."""
        began, first = time.perf_counter(), 0.0
        for ids, max_tokens in jobs:
            self._sent += 1
            prompt = Prompt(token_ids=pack_ids(ids), num_tokens=len(ids), block_root=b"r" * 16, max_tokens=max_tokens)
            sampling = SamplingParams(temperature=0.0, ignore_eos=True)
            await self._link.send(EngineRequest(request_id=f"r{self._sent}", prompt=prompt, sampling=sampling))
        left = len(jobs)
        while left:
            for message in await self._link.receive():
                chunks = message.chunks if isinstance(message, Progress) else ()
                if chunks and not first:
                    first = time.perf_counter() - began
                left -= sum(chunk.finish_reason is not None for chunk in chunks)
        return first, time.perf_counter() - began


async def through_the_engine(settings: ModelSettings, rounds: int, count: int) -> tuple[float, float]:
    """Return median tokens per second of mixed requests, and median seconds to a first token."""
    async with EngineLink.open(settings) as link:
        while not any(isinstance(message, Ready) for message in await link.receive()):
            pass
        return await measure(EngineClient(link), rounds, count)


# --- over HTTP ---


class HttpClient:
    """Asks the server at a port; connections are kept, as clients' pools do. Bytes are looked through, not parsed."""

    def __init__(self, port: int, model: str) -> None:
        self._port, self._model = port, model
        self._idle: list[SocketStream] = []
        self.bills: list[dict[str, float]] = []

    async def ask(self, jobs: Sequence[Job]) -> tuple[float, float]:
        """Send all at once; return seconds to the first token and to the end of all."""
        firsts: list[float] = []
        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for job in jobs:
                tasks.start_soon(self._stream, job, began, firsts)
        return min(firsts), time.perf_counter() - began

    async def rest(self, seconds: float) -> None:
        """Send nothing for a while; a server may close connections meanwhile, so they are given up."""
        await self.close()
        await anyio.sleep(seconds)

    async def close(self) -> None:
        """Close all connections."""
        while self._idle:
            await self._idle.pop().aclose()

    async def _stream(self, job: Job, began: float, firsts: list[float]) -> None:
        ids, max_tokens = job
        body = {"model": self._model, "prompt": ids, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        content = json.dumps({**body, "ignore_eos": True, "stream_options": {"include_usage": True}}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        stream = self._idle.pop() if self._idle else await anyio.connect_tcp("127.0.0.1", self._port)
        await stream.send(head.encode() + content)
        tail, came = b"", False
        while not tail.endswith(_END_OF_BODY):
            data = await stream.receive()
            tail = (tail + data)[-4096:]
            if not came and b'"text"' in data:
                came = True
                firsts.append(time.perf_counter() - began)
        self._idle.append(stream)
        if b'"finish_reason":"length"' not in tail:
            raise RuntimeError(f"an answer ended otherwise: {tail[-500:]!r}")
        last = tail[: tail.rindex(b"data: [DONE]")].rpartition(b"data: ")[2]
        self.bills.append(json.loads(last.split(b"\n")[0])["usage"]["headrace"])


async def through_http(client: HttpClient, rounds: int, count: int) -> tuple[float, float]:
    """Return what `through_the_engine` does."""
    try:
        return await measure(client, rounds, count)
    finally:
        await client.close()


def environment_of(settings: ModelSettings) -> dict[str, str]:
    """Return the variables that give `headrace up` the settings of the engine."""
    options = {"DEVICE": settings.device, "DTYPE": settings.dtype, "MAX_INFLIGHT": "512", **LIMITS}
    return {f"HEADRACE_{name.upper()}": str(value) for name, value in options.items()}


async def measure(client: EngineClient | HttpClient, rounds: int, count: int) -> tuple[float, float]:
    """Warm up, let the idle engine record its steps, then measure; in the same order through engine and ring."""
    await client.ask(mixed(min(8, count), 99))
    await client.rest(_PAUSE_S)
    firsts = [(await client.ask(short(seed)))[0] for seed in range(_NUM_SHORT)]
    rates = []
    for number in range(rounds):
        jobs = mixed(count, number)
        _, seconds = await client.ask(jobs)
        rates.append(sum(tokens for _, tokens in jobs) / seconds)
    return statistics.median(rates), statistics.median(firsts)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama-8b")
    parser.add_argument("--dir", type=Path, help="/tmp and the shape's name by default")
    parser.add_argument("--state", type=Path, default=Path("/tmp/headrace-ring"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--edges", type=int, default=1)
    parser.add_argument("--port", type=int, default=8177)
    args = parser.parse_args()
    args.dir = args.dir or Path("/tmp") / args.shape
    if not (args.dir / "config.json").exists():
        write_checkpoint(args.dir, {**SHAPES[args.shape], "tie_word_embeddings": False})
    settings = ModelSettings(
        model_dir=str(args.dir.parent), models=(args.dir.name,), state_dir=str(args.state), device=args.device,
        dtype=args.dtype, log_level="warning", **LIMITS,  # type: ignore[arg-type]
    )  # fmt: skip
    engine_rate, engine_first = anyio.run(through_the_engine, settings, args.rounds, args.requests)
    say(f"engine: {engine_rate:,.0f} tok/s, first token after {engine_first * 1e3:.2f} ms")
    with house(
        args.dir, f"--edges={args.edges}", port=args.port, state_dir=settings.state_dir,
        environ=environment_of(settings), timeout_s=_START_S,
    ):  # fmt: skip
        client = HttpClient(args.port, args.dir.name)
        rate, first = anyio.run(through_http, client, args.rounds, args.requests)
    bills = client.bills[min(8, args.requests) :][:_NUM_SHORT]
    parts = {part: statistics.median(bill[part] for bill in bills) for part in _PARTS}
    say("bills of first tokens: " + ", ".join(f"{part} {value:.2f}" for part, value in parts.items()))
    say(
        f"over HTTP: {rate:,.0f} tok/s ({rate / engine_rate:.1%} of the engine's), first token after "
        f"{first * 1e3:.2f} ms ({(first - engine_first) * 1e3:+.2f} ms)"
    )


if __name__ == "__main__":
    main()
