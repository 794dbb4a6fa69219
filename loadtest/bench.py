"""`headrace bench`: open- or closed-loop load over HTTP against any OpenAI-style server.

Closed loop (`--concurrency`): so many users, each sends its next request when the last is answered. Open loop
(`--rate`): requests arrive by a Poisson process whatever the server does. Formulas stand in loadtest/report.py.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio
import httpx

from loadtest.client import Sample, StreamClient, new_client
from loadtest.report import as_table, summarize
from loadtest.workload import chat_bodies

T = TypeVar("T", int, float)


class BenchError(Exception):
    """Why nothing can be measured, in one sentence."""


def _number(kind: Callable[[str], T], *, least: float = -math.inf, above: float = -math.inf) -> Callable[[str], T]:
    """Return what reads an option's number and refuses one that makes no sense."""

    def read(text: str) -> T:
        value = kind(text)
        if not (value >= least and value > above and value < math.inf):
            wanted = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
            raise argparse.ArgumentTypeError(f"must be {wanted}, not {text}")
        return value

    read.__name__ = kind.__name__  # in argparse's words for what is no number at all
    return read


def _server(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"must begin with http:// or https://, not {text}")
    return text.rstrip("/").removesuffix("/v1")


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= low <= high:
        raise argparse.ArgumentTypeError(f"must be N or LOW-HIGH, from 1 on, not {text}")
    return low, high


def _goal(text: str) -> tuple[str, float]:
    found = re.fullmatch(r"(ttft|tpot|e2el):(\d+(?:\.\d+)?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"must be ttft, tpot or e2el with a limit in ms, such as ttft:200, not {text}")
    return found[1], float(found[2])


def parser() -> argparse.ArgumentParser:
    """Return the command line of `headrace bench`."""
    options = argparse.ArgumentParser(
        "headrace bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("--url", type=_server, default="http://127.0.0.1:8000", help="server, with or without /v1")
    options.add_argument("--model", help="model name; the server's first one if not given")
    options.add_argument("--api-key", help="bearer token")
    options.add_argument("--requests", type=_number(int, least=1), default=32, help="requests that count")
    options.add_argument("--warmup", type=_number(int, least=0), default=2, help="requests before, that do not count")
    options.add_argument("--concurrency", type=_number(int, least=1), default=1, help="users of the closed loop")
    options.add_argument("--rate", type=_number(float, above=0), help="requests per second: open loop")
    options.add_argument("--input-words", type=_range, default=(40, 40), help="words of a prompt, N or LOW-HIGH")
    options.add_argument("--output-tokens", type=_range, default=(64, 64), help="tokens of an answer, N or LOW-HIGH")
    options.add_argument(
        "--shared-words", type=_number(int, least=0), default=0, help="words that all prompts begin with"
    )
    options.add_argument("--temperature", type=float, default=0.0)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument(
        "--goodput", nargs="*", type=_goal, default=[], metavar="NAME:MS", help="e.g. ttft:200 tpot:50"
    )
    options.add_argument("--json", type=Path, help="also write all figures to this file")
    return options


async def closed_loop(client: StreamClient, bodies: Sequence[dict[str, Any]], users: int) -> list[Sample]:
    """Run the requests with so many users."""
    samples: list[Sample] = []
    rest: Iterator[dict[str, Any]] = iter(bodies)
    start = time.perf_counter()

    async def one(body: dict[str, Any]) -> None:
        samples.append(await client.measure(body, start))

    async def user() -> None:
        for body in rest:
            await one(body)

    async with anyio.create_task_group() as group:
        for _ in range(users):
            group.start_soon(user)
    return samples


async def open_loop(client: StreamClient, bodies: Sequence[dict[str, Any]], rate: float, seed: int) -> list[Sample]:
    """Run the requests at Poisson arrivals of `rate` per second."""
    samples: list[Sample] = []
    random_ = random.Random(seed)
    start = time.perf_counter()

    async def one(body: dict[str, Any]) -> None:
        samples.append(await client.measure(body, start))

    async with anyio.create_task_group() as group:
        for body in bodies:
            group.start_soon(one, body)
            await anyio.sleep(random_.expovariate(rate))
    return samples


async def _first_model(options: argparse.Namespace) -> str:
    """Return the first model of the server that talks. Raises BenchError where none is told."""
    async with new_client(options.url, 1, options.api_key) as plain:
        reply = await plain.get("/v1/models")
    try:
        return next(str(model["id"]) for model in reply.json()["data"] if model.get("kind", "chat") == "chat")
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        said = f"HTTP {reply.status_code}: {reply.text[:200]}"
        raise BenchError(f"{options.url}/v1/models names no model that talks ({said}); name one with --model") from None


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Warm up, load the server, return the figures. Raises BenchError."""
    model = options.model or await _first_model(options)
    async with StreamClient(options.url, options.api_key) as client:
        bodies = chat_bodies(
            model,
            seed=options.seed,
            input_words=options.input_words,
            output_tokens=options.output_tokens,
            shared_words=options.shared_words,
            temperature=options.temperature,
        )
        await closed_loop(client, [next(bodies) for _ in range(options.warmup)], min(options.concurrency, 8))
        wanted = [next(bodies) for _ in range(options.requests)]
        start = time.perf_counter()
        if options.rate:
            samples = await open_loop(client, wanted, options.rate, options.seed)
        else:
            samples = await closed_loop(client, wanted, options.concurrency)
        duration = time.perf_counter() - start
    return {"model": model, "url": options.url} | summarize(samples, duration, dict(options.goodput))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is 1 if any request failed."""
    options = parser().parse_args(arguments)
    try:
        figures = anyio.run(run, options, backend_options={"use_uvloop": True})
    except httpx.HTTPError as error:
        sys.stderr.write(f"headrace bench: {options.url} does not answer: {error}\n")
        return 1
    except BenchError as error:
        sys.stderr.write(f"headrace bench: {error}\n")
        return 1
    if figures["completed"]:
        sys.stdout.write(as_table(figures) + "\n")
    else:
        sys.stderr.write(f"headrace bench: no request was answered: {'; '.join(figures['errors'])}\n")
    if options.json:
        try:
            options.json.write_text(json.dumps(figures, indent=1))
        except OSError as error:
            sys.stderr.write(f"headrace bench: {options.json} cannot be written: {error.strerror}\n")
            return 1
    return int(figures["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
