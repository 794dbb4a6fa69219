"""What a second tier of the KV cache is worth to conversations that return, and what it costs those that run.

    python -m loadtest.returning                                         # SmolLM2 on this CPU: none, memory, file
    python -m loadtest.returning --shape llama-8b --device cuda --tokens 8000 --conversations 24 --running 32 --gib 40

Each conversation has a first turn of `--tokens` and an answer; the cache has room for `--fit` of them. Then all return,
one after another, with 32 new tokens: time to the first token, how much of the prompt was known, whether the answers
are those of the run without a tier. Then answers run alone, and beside conversations that return: time between tokens.
Floors: the bytes of a prompt's blocks at the speed of a copy from the tier, by the runner's own trial at its start.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.engine_bench import random_runner
from loadtest.report import percentile
from loadtest.shapes import SHAPES
from model_svc.engine.engine import Engine
from model_svc.engine.plan import Runner
from model_svc.engine.request import EngineRequest
from model_svc.runner.load import load_runner
from model_svc.runner.tier import TierOptions
from wire import block_hash
from wire.messages import Prompt, SamplingParams, pack_ids
from wire.settings import default_model_dir

_BLOCK, _ANSWER, _NEW = 16, 32, 32
_ROOT = b"r" * 16


class Talk:
    """An engine over a runner, and requests to it one after another."""

    def __init__(self, runner: Runner) -> None:
        self.engine = Engine(runner, token_bytes=lambda _: b"x")
        self._requests = 0

    def add(self, ids: list[int], max_tokens: int) -> str:
        """Queue a greedy request."""
        self._requests += 1
        prompt = Prompt(
            token_ids=pack_ids(ids), num_tokens=len(ids), block_root=_ROOT, block_size=_BLOCK, max_tokens=max_tokens,
            block_hashes=b"".join(block_hash.chain(_ROOT, ids, _BLOCK)),
        )  # fmt: skip
        request = EngineRequest(
            request_id=f"r{self._requests}", prompt=prompt, sampling=SamplingParams(temperature=0.0, ignore_eos=True)
        )
        self.engine.add(request)
        return request.request_id

    def ask(self, ids: list[int], max_tokens: int) -> tuple[list[int], float, int]:
        """Return what is answered, ms until the first token, and how many tokens were known."""
        started = time.perf_counter()
        name = self.add(ids, max_tokens)
        answer: list[int] = []
        first_ms, num_cached = 0.0, 0
        while self.engine.has_work:
            for chunk in self.engine.step():
                if chunk.request_id == name:
                    if not answer:
                        first_ms, num_cached = (time.perf_counter() - started) * 1e3, chunk.num_cached_tokens
                    answer += chunk.token_ids
            self.engine.events()
        return answer, first_ms, num_cached

    def gaps(self, num_running: int, arriving: Iterator[list[int]], num_steps: int) -> list[float]:
        """Return the ms of each step of running answers, while prompts come one after another."""
        draw = random.Random(3)
        for _ in range(num_running):
            self.add([draw.randrange(1000, 40_000) for _ in range(64)], num_steps + 64)
        while self.engine.load().num_waiting or self.engine.scheduler.roster.prefilling:
            self.engine.step()
        found = []
        for number in range(num_steps):
            if number % (num_steps // 8) == 0 and (ids := next(arriving, None)):
                self.add(ids, 1)
            started = time.perf_counter()
            self.engine.step()
            found.append((time.perf_counter() - started) * 1e3)
            self.engine.events()
        while self.engine.has_work:
            self.engine.step()
            self.engine.events()
        return found


def runner_of(chosen: argparse.Namespace, num_blocks: int, tier: dict[str, Any]) -> Runner:
    """Load a model, or make one up."""
    sizes: dict[str, Any] = {"num_blocks": num_blocks, "max_num_seqs": max(16, chosen.running + 8)}
    if chosen.shape:
        options = TierOptions(ram_bytes=tier.get("kv_ram_bytes", 0))
        return random_runner(SHAPES[chosen.shape], chosen.device, tier=options, max_num_batched_tokens=2048, **sizes)[0]
    path = Path(default_model_dir()).expanduser() / chosen.model
    return load_runner(path, device=chosen.device, dtype="auto", **sizes, **tier)


def measure(chosen: argparse.Namespace, name: str, runner: Runner, wanted: list[list[int]]) -> list[str]:
    """Return a row of the table; `wanted` gets, or is, what the conversations answer at their return."""
    talk = Talk(runner)
    talk.ask(list(range(1000, 1200)), 4)  # warm
    draw = random.Random(1)
    turns = [[draw.randrange(1000, 40_000) for _ in range(chosen.tokens)] for _ in range(chosen.conversations)]
    if "restart" not in name:
        answers = [talk.ask(ids, _ANSWER)[0] for ids in turns]
        chosen.first_answers = answers
    new = [[draw.randrange(1000, 40_000) for _ in range(_NEW)] for _ in turns]
    again = [ids + said + more for ids, said, more in zip(turns, chosen.first_answers, new, strict=True)]
    found = [talk.ask(ids, 8) for ids in again]
    if not wanted:
        wanted += [answer for answer, _, _ in found]
    same = sum(answer == one for (answer, _, _), one in zip(found, wanted, strict=True))
    first = sorted(ms for _, ms, _ in found)
    known = statistics.mean(cached / len(ids) for (_, _, cached), ids in zip(found, again, strict=True))
    alone = talk.gaps(chosen.running, iter(()), chosen.steps)
    beside = talk.gaps(chosen.running, iter(again), chosen.steps)
    load, info = talk.engine.load(), runner.info
    floor = info.tier_block_ms * (chosen.tokens // _BLOCK)
    return [
        name, f"{statistics.median(first):.1f}", f"{first[-1]:.1f}", f"{known:.0%}", f"{same}/{len(found)}",
        f"{floor:.1f}" if info.num_tier_blocks else "-",
        f"{load.num_loaded_blocks * info.kv_bytes_per_token * _BLOCK / 1e9:.2f}",
        *(f"{percentile(gaps, p):.2f}" for gaps in (alone, beside) for p in (50, 99)), f"{max(beside):.1f}",
    ]  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="random weights of this shape instead of a model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--fit", type=int, default=3, help="for how many of them the cache has room")
    parser.add_argument("--running", type=int, default=4, help="answers that run")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--gib", type=float, default=1.0, help="of the tier")
    chosen = parser.parse_args()
    num_blocks = chosen.fit * -(-(chosen.tokens + _ANSWER + _NEW + 8) // _BLOCK)
    num_blocks += chosen.running * -(-(chosen.steps + 128) // _BLOCK)
    size = int(chosen.gib * (1 << 30))
    table = Table(
        "tier", "first token ms, p50", "longest", "known", "same", "floor ms", "GB loaded", "between tokens ms, p50",
        "p99", "beside returns, p50", "p99", "longest",
    )  # fmt: skip
    wanted: list[list[int]] = []
    with tempfile.TemporaryDirectory() as folder:
        tiers: dict[str, dict[str, Any]] = {"none": {}, "memory": {"kv_ram_bytes": size}}
        if chosen.device == "cpu" and not chosen.shape:
            file = {"kv_disk_bytes": size, "kv_disk_dir": folder}
            tiers |= {"file": file, "file, after a restart": file}
        for name, tier in tiers.items():
            started = time.perf_counter()
            runner = runner_of(chosen, num_blocks, tier)
            sys.stderr.write(f"{name}: loaded in {time.perf_counter() - started:.1f} s\n")
            table.add_row(*measure(chosen, name, runner, wanted))
            runner.close()
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
