"""The engine alone on a GPU: the model's shape with random weights, engine and runner in this process, ids in and out.

    python -m loadtest.engine [--tests decode1,prefill2048,...] [--json out.json] [--profile 1,64]

Prints what each test took, the floor that the card's own copy bandwidth and matrix rate set, and vLLM's figure from the
same card where one was measured (vLLM 0.26, offline engine, dummy weights, CUDA graphs; 2026-11-27).

Long: the tests of one table and what each is measured against.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from loadtest.kernels import ceilings
from loadtest.shapes import LLAMA_8B, SMOLLM2_135M
from model_svc.engine.engine import Engine
from model_svc.engine.plan import Runner, StepOutput
from model_svc.engine.request import EngineRequest
from model_svc.models.config import parse_config
from model_svc.models.load import build_model
from model_svc.quant.dequantized import Dequantized
from model_svc.runner.load import make_runner
from model_svc.weights.random import RandomSource
from wire import block_hash
from wire.messages import Prompt, SamplingParams, pack_ids

# vLLM 0.26.0, bf16, per card; ms unless the test says otherwise.
VLLM: dict[str, dict[str, float]] = {
    "H200": {
        "decode1": 4.89, "decode8": 5.00, "decode32": 5.44, "decode64": 5.96, "decode128": 7.20, "decode256": 10.96,
        "prefill128": 12.3, "prefill2048": 52.0, "prefill8192": 220.0, "prompts": 43143.0, "mixed": 8512.0,
        "warm": 11.4, "small": 1.63,
    },
    "H100": {
        "decode1": 6.51, "decode8": 6.67, "decode32": 7.13, "decode64": 7.80, "decode128": 9.24, "decode256": 12.71,
        "prefill128": 16.2, "prefill2048": 56.0, "prefill8192": 230.0, "prompts": 42426.0, "mixed": 7344.0,
        "warm": 20.1, "small": 2.14,
    },
}  # fmt: skip


@dataclass
class Figure:
    """One row of the table. `floor` 0: none is given."""

    test: str
    unit: str
    ours: float
    floor: float = 0.0
    vllm: float = 0.0
    note: str = ""


class Bench:
    """A model of some shape with an engine over it."""

    def __init__(self, shape: dict[str, Any], ceiling: tuple[float, float], **options: Any) -> None:
        self.shape = shape
        self.copy_rate, self.product_rate = ceiling[0] * 1e9, ceiling[1] * 1e12
        device = torch.device("cuda")
        source = RandomSource(tied=shape["tie_word_embeddings"], dtype=torch.bfloat16, device=device)
        method = Dequantized(torch.bfloat16, device)
        began = time.perf_counter()
        config = parse_config(Path("random/config.json"), shape)
        model = build_model(config, source, method, device=device, max_len=16384)
        torch.cuda.synchronize()
        weights_at = time.perf_counter()
        defaults = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
        self.runner: Runner = make_runner(model, dtype=torch.bfloat16, **(defaults | options))
        self.seconds = {"weights": weights_at - began, "runner": time.perf_counter() - weights_at}
        self.info = self.runner.info
        table = shape["vocab_size"] * shape["hidden_size"] * 2
        self.step_bytes = self.info.weight_bytes - (0 if shape["tie_word_embeddings"] else table)
        self._requests = 0
        self.engine = self.new_engine()

    def new_engine(self, **options: Any) -> Engine:
        """Return an engine without any prefix in its cache."""
        return Engine(self.runner, token_bytes=lambda _: b"x", **options)

    def request(self, prompt: Sequence[int], max_tokens: int, **sampling: Any) -> EngineRequest:
        """Return a greedy request that ends by length, with the block hashes that the tokenizer desk would send."""
        self._requests += 1
        root, block_size = b"r" * 16, self.info.block_size
        content = Prompt(
            token_ids=pack_ids(prompt), num_tokens=len(prompt), block_root=root, max_tokens=max_tokens,
            block_hashes=b"".join(block_hash.chain(root, prompt, block_size)), block_size=block_size,
        )  # fmt: skip
        params = SamplingParams(**({"temperature": 0.0, "ignore_eos": True} | sampling))
        return EngineRequest(request_id=f"r{self._requests}", prompt=content, sampling=params)

    def add(self, prompt: Sequence[int], max_tokens: int, **sampling: Any) -> str:
        """Queue such a request."""
        request = self.request(prompt, max_tokens, **sampling)
        self.engine.add(request)
        return request.request_id

    def prompt(self, length: int) -> list[int]:
        """Return ids that no other prompt begins with."""
        draw = random.Random(self._requests * 7919 + length)
        return [draw.randrange(self.shape["vocab_size"]) for _ in range(length)]

    def drain(self) -> None:
        """Step until nothing is left."""
        while self.engine.has_work:
            self.engine.step()
            self.engine.events()

    # --- floors ---

    def decode_floor_ms(self, batch: int, context: float) -> float:
        """The larger of bytes over bandwidth and operations over rate, for one step."""
        kv = self.info.kv_bytes_per_token * context * batch
        flops = self.step_bytes * batch + 2 * batch * context * self._attention_width()
        return 1e3 * max((self.step_bytes + kv) / self.copy_rate, flops / self.product_rate)

    def prefill_floor_ms(self, tokens: int, prompts: int = 1) -> float:
        """The same for whole prompts; the head is computed once for each."""
        head = self.shape["vocab_size"] * self.shape["hidden_size"] * 2
        flops = prompts * ((self.step_bytes - head) * tokens + head + tokens**2 * self._attention_width())
        return float(1e3 * max(self.step_bytes / self.copy_rate, flops / self.product_rate))

    def _attention_width(self) -> int:
        """Operations of one query against one key (scores and values), halved: in all layers and heads."""
        return 2 * int(self.shape["num_hidden_layers"] * self.shape["hidden_size"])


def decode(bench: Bench, batch: int, tokens: int = 128) -> tuple[float, float]:
    """Return ms per step of `batch` running sequences and the mean context."""
    bench.engine = bench.new_engine()
    for _ in range(batch):
        bench.add(bench.prompt(128), tokens + 8)
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
    return took, 128 + tokens / 2


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


def mixed(bench: Bench) -> float:
    """Return output tokens per second of 256 requests of mixed lengths that come at once."""
    bench.engine = bench.new_engine()
    draw = random.Random(7)
    sizes = [(draw.randint(64, 1024), draw.randint(32, 512)) for _ in range(256)]
    contents = [bench.request(bench.prompt(size), output) for size, output in sizes]
    began = time.perf_counter()
    for content in contents:
        bench.engine.add(content)
    bench.drain()
    return sum(output for _, output in sizes) / (time.perf_counter() - began)


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
        torch.cuda.synchronize()
        done = time.perf_counter()
        engine._committer.commit(due, runner.collect(handle))
        end = time.perf_counter()
        submit.append(((planned - at) * 1e3, (submitted - planned) * 1e3))
        collect.append((end - done) * 1e3)
    bench.drain()
    plan_ms, submit_ms = (statistics.median(column) for column in zip(*submit, strict=True))
    return {"schedule": plan_ms, "submit": submit_ms, "collect+commit": statistics.median(collect)}


def profile(bench: Bench, batch: int, console: Console) -> None:
    """Print where the time of a decode step goes: kernels by time, and the device's idle share."""
    bench.engine = bench.new_engine()
    for _ in range(batch):
        bench.add(bench.prompt(128), 60)
    while bench.engine.load().num_running < batch or bench.engine.scheduler.roster.prefilling:
        bench.engine.step()
    steps = 10
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        for _ in range(steps):
            bench.engine.step()
        torch.cuda.synchronize()
    bench.drain()
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in trace.events()
        if event.device_type.name == "CUDA"
    )
    if not spans:
        console.print("the profiler saw no kernel")
        return
    whole = max(end for _, end, _ in spans) - spans[0][0]
    idle, reached = 0.0, spans[0][0]
    per_name: dict[str, list[float]] = {}
    for start, end, name in spans:
        idle += max(0.0, start - reached)
        reached = max(reached, end)
        per_name.setdefault(name[:70], []).append(end - start)
    console.print(f"batch {batch}: {whole / steps / 1e3:.3f} ms a step, {idle / whole:.1%} of it idle")
    table = Table("kernel", "a step", "us each", "ms a step")
    for name, times in sorted(per_name.items(), key=lambda item: -sum(item[1]))[:16]:
        count = len(times) / steps
        table.add_row(name, f"{count:.1f}", f"{statistics.mean(times):.1f}", f"{sum(times) / steps / 1e3:.3f}")
    console.print(table)


def _rows(bench: Bench, ceiling: tuple[float, float]) -> dict[str, Callable[[], Figure]]:
    """Return every test of the table by its name."""

    def decodes(batch: int) -> Callable[[], Figure]:
        def run() -> Figure:
            took, context = decode(bench, batch)
            return Figure(f"decode{batch}", "ms/step", took, bench.decode_floor_ms(batch, context))

        return run

    def prefills(length: int) -> Callable[[], Figure]:
        return lambda: Figure(f"prefill{length}", "ms", prefill(bench, length), bench.prefill_floor_ms(length))

    def small() -> Figure:
        model = Bench(SMOLLM2_135M, ceiling, max_num_seqs=8, num_blocks=4096)
        took, context = decode(model, 1, 400)
        floor = model.decode_floor_ms(1, context)
        model.runner.close()
        return Figure("small", "ms/step", took, floor)

    def warms() -> Figure:
        took, device = warm(bench)
        return Figure("warm", "ms", took, bench.decode_floor_ms(1, 0), note=f"device {device:.2f} ms")

    def itl() -> Figure:
        quiet, busy = stutter(bench)
        return Figure("itl", "x quiet p99", busy / quiet, note=f"{quiet:.2f} ms quiet, {busy:.2f} ms busy")

    def host() -> Figure:
        parts = host_ms(bench, 256)
        note = ", ".join(f"{name} {value:.3f}" for name, value in parts.items())
        return Figure("host256", "ms/step", sum(parts.values()), note=note)

    rows: dict[str, Callable[[], Figure]] = {f"decode{n}": decodes(n) for n in (1, 8, 32, 64, 128, 256)}
    rows |= {f"prefill{n}": prefills(n) for n in (128, 2048, 8192)}
    rows["prompts"] = lambda: Figure("prompts", "tok/s", prompts(bench), 32768e3 / bench.prefill_floor_ms(1024, 32))
    rows["warm"] = warms
    rows |= {"itl": itl, "host256": host, "small": small}
    rows["mixed"] = lambda: Figure("mixed", "tok/s", mixed(bench))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", default="", help="names with commas in between; all by default")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--num-blocks", type=int, help="of the KV cache; by default what fits")
    parser.add_argument("--profile", default="", help="batch sizes whose decode step is profiled")
    args = parser.parse_args(argv)
    console = Console(width=130)
    if not torch.cuda.is_available():
        console.print("no CUDA device: the engine's benchmark needs one")
        return 1
    ceiling = ceilings()
    torch.cuda.empty_cache()
    card = torch.cuda.get_device_name()
    bench = Bench(LLAMA_8B, ceiling, num_blocks=args.num_blocks)
    console.print(f"{card}: copy {ceiling[0]:,.0f} GB/s, product {ceiling[1]:,.0f} TFLOP/s; {bench.seconds}")
    gc.collect()
    gc.freeze()
    peers = next((figures for name, figures in VLLM.items() if name in card), {})
    figures = []
    rows = _rows(bench, ceiling)
    for name in args.tests.split(",") if args.tests else rows:
        began = time.perf_counter()
        try:
            figure = rows[name]()
        except Exception as error:  # the other rows are wanted all the same
            console.print(f"{name}: {type(error).__name__}: {error}")
            bench.engine = bench.new_engine()
            continue
        figure.vllm = peers.get(name, 0.0)
        figures.append(figure)
        console.print(f"{name}: {figure.ours:.3f} {figure.unit} {figure.note} ({time.perf_counter() - began:.1f} s)")
    for batch in filter(None, args.profile.split(",")):
        profile(bench, int(batch), console)
    console.print(_table(figures, card))
    if args.json:
        result = {"card": card, "copy_gb_s": ceiling[0], "product_tflop_s": ceiling[1], "seconds": bench.seconds}
        args.json.write_text(json.dumps(result | {"figures": [asdict(figure) for figure in figures]}, indent=1))
    return 0


def _table(figures: list[Figure], card: str) -> Table:
    table = Table("test", "unit", "ours", "floor", "of floor", "vLLM", "against it", title=card)
    for figure in figures:
        rate = figure.unit == "tok/s"  # more is better
        of_floor = figure.ours / figure.floor if rate and figure.floor else figure.floor / figure.ours
        against = (figure.ours / figure.vllm if rate else figure.vllm / figure.ours) if figure.vllm else 0.0
        table.add_row(
            figure.test,
            figure.unit,
            f"{figure.ours:,.3f}",
            f"{figure.floor:,.2f}" if figure.floor else "",
            f"{of_floor:.0%}" if figure.floor else "",
            f"{figure.vllm:,.2f}" if figure.vllm else "",
            f"{against:.2f} x" if against else "",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
