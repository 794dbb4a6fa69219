"""The tests of `loadtest.engine`: each drives an engine and returns what it took."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from loadtest.engine_bench import Bench, synchronize
from model_svc.engine.plan import Runner, StepOutput


def decode(bench: Bench, batch: int, tokens: int = 128, prompt: int = 128) -> tuple[float, float]:
    """Return ms per step of `batch` running sequences and the mean context."""
    bench.engine = bench.new_engine()
    for _ in range(batch):
        bench.add(bench.prompt(prompt), tokens + 8)
    while bench.engine.load().num_running < batch or bench.engine.scheduler.roster.prefilling:
        bench.engine.step()
    for _ in range(3):
        bench.engine.step()
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    for _ in range(tokens - 4):
        bench.engine.step()
        bench.engine.events()
    took = (time.perf_counter() - began) * 1e3 / (tokens - 4)
    gc.enable()
    bench.drain()
    return took, prompt + tokens / 2


def first_token_ms(bench: Bench, prompt: Sequence[int]) -> float:
    """Return the time from adding a request to its first token."""
    request = bench.request(prompt, 1)
    began = time.perf_counter()
    bench.engine.add(request)
    while not bench.engine.step():
        pass
    took = (time.perf_counter() - began) * 1e3
    bench.drain()
    return took


def prefill(bench: Bench, length: int, rounds: int = 4) -> float:
    """Return the median time to first token of a cold prompt."""
    bench.engine = bench.new_engine()
    return statistics.median([first_token_ms(bench, bench.prompt(length)) for _ in range(rounds)][1:])


def warm(bench: Bench) -> tuple[float, float]:
    """Return the time to first token of 64 new tokens behind 4,096 cached ones, and what the device took of it."""
    bench.engine = bench.new_engine()
    shared = bench.prompt(4096)
    first_token_ms(bench, shared)
    with device_times(bench.runner) as device:
        took = [first_token_ms(bench, shared + bench.prompt(64)) for _ in range(6)]
    return statistics.median(took[1:]), statistics.median(device[1:])


@contextmanager
def device_times(runner: Runner) -> Iterator[list[float]]:
    """Note the ms that the device took for each step inside."""
    collect, found = runner.collect, list[float]()

    def noting(handle: Any) -> StepOutput:
        output = collect(handle)
        found.append(output.compute_ms)
        return output

    runner.collect = noting  # type: ignore[method-assign]
    yield found
    runner.collect = collect  # type: ignore[method-assign]


def prompts(bench: Bench) -> float:
    """Return prompt tokens per second of 32 prompts of 1,024."""
    bench.engine = bench.new_engine()
    contents = []
    for number in range(32):
        bench._requests += number
        contents.append(bench.request(bench.prompt(1024), 1))
    began = time.perf_counter()
    for content in contents:
        bench.engine.add(content)
    bench.drain()
    return 32 * 1024 / (time.perf_counter() - began)


def mixed(bench: Bench) -> list[float]:
    """Return output tokens per second of 256 requests of mixed lengths that come at once, of three runs."""
    draw = random.Random(7)
    sizes = [(draw.randint(64, 1024), draw.randint(32, 512)) for _ in range(256)]
    rates = []
    for _ in range(3):
        bench.engine = bench.new_engine()
        contents = [bench.request(bench.prompt(size), output) for size, output in sizes]
        began = time.perf_counter()
        for content in contents:
            bench.engine.add(content)
        bench.drain()
        rates.append(sum(output for _, output in sizes) / (time.perf_counter() - began))
    return rates


def stutter(bench: Bench) -> tuple[float, float]:
    """Return p99 of the time between two tokens of 32 streams in ms: quiet, and while prompts of 8,192 arrive."""
    quiet_ms, _ = decode(bench, 32, 40)
    bench.engine = bench.new_engine(policy="dynamic_chunk", inter_token_ms=1.5 * quiet_ms)
    streams = {bench.add(bench.prompt(128), 2000) for _ in range(32)}
    while bench.engine.scheduler.roster.prefilling or bench.engine.load().num_waiting:
        bench.engine.step()
    gaps: list[list[float]] = []
    for num_prompts, seconds in ((0, 1.0), (2, 6.0)):
        for _ in range(num_prompts):
            bench.add(bench.prompt(8192), 4)
        last: dict[str, float] = {}
        found: list[float] = []
        until = time.perf_counter() + seconds
        while time.perf_counter() < until and (not num_prompts or bench.engine.load().num_running > 32 or not last
                                               or bench.engine.load().num_waiting):  # fmt: skip
            for chunk in bench.engine.step():
                now = time.perf_counter()
                if chunk.request_id in streams:
                    if chunk.request_id in last:
                        found.append((now - last[chunk.request_id]) * 1e3)
                    last[chunk.request_id] = now
        gaps.append(found)
    for name in streams:
        bench.engine.cancel(name)
    bench.drain()
    quiet, busy = (statistics.quantiles(found, n=100)[98] for found in gaps)
    return quiet, busy


def host_ms(bench: Bench, batch: int) -> dict[str, float]:
    """Return ms of host work in a step of `batch` sequences, split: plan and submit, collect's rest, commit."""
    bench.engine = bench.new_engine()
    for _ in range(batch):
        bench.add(bench.prompt(16), 120)
    while bench.engine.load().num_running < batch or bench.engine.scheduler.roster.prefilling:
        bench.engine.step()
    submit, collect = [], []
    runner, engine = bench.runner, bench.engine
    for _ in range(50):
        at = time.perf_counter()
        scheduled = engine.scheduler.schedule()
        planned = time.perf_counter()
        assert scheduled is not None
        engine._in_flight.append((scheduled, runner.submit(scheduled.plan)))
        submitted = time.perf_counter()
        due, handle = engine._in_flight.popleft()
        synchronize()
        done = time.perf_counter()
        engine._committer.commit(due, runner.collect(handle))
        end = time.perf_counter()
        submit.append(((planned - at) * 1e3, (submitted - planned) * 1e3))
        collect.append((end - done) * 1e3)
    bench.drain()
    plan_ms, submit_ms = (statistics.median(column) for column in zip(*submit, strict=True))
    return {"schedule": plan_ms, "submit": submit_ms, "collect+commit": statistics.median(collect)}
