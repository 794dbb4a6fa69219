"""Random requests with random aborts through the engine for minutes: nothing may leak, and everybody ends once.

    python -m loadtest.soak [--seconds 360] [--shape smollm2-135m] [--device cuda]

Prompts share beginnings, answers are drawn in every way, blocks are short so that answers are preempted, and a share of
the requests is aborted at random moments. Every twenty seconds everything is drained: then all blocks must be free and
the engine's own invariants hold; and in the second half of the run, when every lazily made table and graph is there,
each drain must leave the device's memory as the one before did, to the byte.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from loadtest.shapes import SHAPES
from model_svc.engine.engine import Engine
from model_svc.engine.plan import Runner
from model_svc.engine.request import EngineRequest
from model_svc.models.config import parse_config
from model_svc.models.load import build_model
from model_svc.quant.dequantized import Dequantized
from model_svc.runner.load import make_runner
from model_svc.weights.random import RandomSource
from wire.block_hash import root
from wire.messages import Prompt, SamplingParams, TokenChunk, pack_ids

KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
    {"temperature": 1.0, "min_p": 0.05, "n": 2},
    {"temperature": 0.9, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    {"temperature": 0.7, "logprobs": 3, "logit_bias": {3: 2.0}},
)


@dataclass
class Request:
    """What is known of a request under way: how many tokens each choice has, and whether it was aborted."""

    max_tokens: int
    tokens: dict[int, int]
    open: set[int]
    aborted: bool = False


@dataclass
class Count:
    """What came of it all."""

    requests: int = 0
    aborted: int = 0
    tokens: int = 0
    steps: int = 0
    preemptions: int = 0
    bytes_after_drains: list[int] = field(default_factory=list)


class Soak:
    """An engine under random load."""

    def __init__(self, runner: Runner, *, seed: int = 0, at_once: int = 48, longest: int = 400) -> None:
        self.engine = Engine(runner, token_bytes=lambda _: b"x")
        self.count = Count()
        self._info = runner.info
        self._draw = random.Random(seed)
        self._at_once, self._longest = at_once, longest
        self._live: dict[str, Request] = {}
        self._shared = [[self._draw.randrange(self._info.vocab_size) for _ in range(longest)] for _ in range(4)]

    def run(self, done: Callable[[], bool], *, abort_chance: float = 0.08, deterministic: bool = False) -> None:
        """Keep requests coming until `done`, one aborted now and then, then drain and look for leaks."""
        while not done():
            while len(self._live) < self._at_once:
                self._add(deterministic=deterministic)
            if self._draw.random() < abort_chance:
                self._abort(self._draw.choice(tuple(self._live)))
            self._step()
        while self.engine.has_work:
            self._step()
        self._look_for_leaks()

    def _add(self, *, deterministic: bool) -> None:
        draw, limit = self._draw, min(self._longest, self._info.max_model_len // 2)
        self.count.requests += 1
        name = f"r{self.count.requests}"
        ids = draw.choice(self._shared)[: draw.choice((0, limit // 4, limit // 2))]
        ids = ids + [draw.randrange(self._info.vocab_size) for _ in range(draw.randint(1, limit // 2))]
        kind = draw.choice(KINDS)
        asks = deterministic and draw.random() < 0.1
        max_tokens = draw.randint(1, limit)
        prompt = Prompt(
            token_ids=pack_ids(ids), num_tokens=len(ids), max_tokens=max_tokens,
            block_root=root(b"soak", model="soak", block_size=self._info.block_size, deterministic=asks),
        )  # fmt: skip
        sampling = SamplingParams(ignore_eos=True, seed=self.count.requests, deterministic=asks, **kind)
        self.engine.add(EngineRequest(request_id=name, prompt=prompt, sampling=sampling))
        choices = range(sampling.n)
        self._live[name] = Request(max_tokens, dict.fromkeys(choices, 0), set(choices))

    def _abort(self, name: str) -> None:
        self._live[name].aborted = True
        self.engine.cancel(name)
        self.count.aborted += 1

    def _step(self) -> None:
        self.count.steps += 1
        for chunk in self.engine.step():
            self._take(chunk)
        self.engine.events()
        self.count.preemptions = self.engine.load().num_preemptions

    def _take(self, chunk: TokenChunk) -> None:
        """Check that tokens come in order, to open choices only, and that each ends once and for the right reason."""
        request = self._live[chunk.request_id]
        assert chunk.choice in request.open, f"{chunk.request_id} speaks after its end"
        assert chunk.index == request.tokens[chunk.choice], f"{chunk.request_id} left a token out"
        request.tokens[chunk.choice] += len(chunk.token_ids)
        self.count.tokens += len(chunk.token_ids)
        if chunk.finish_reason is None:
            assert not request.aborted, f"{chunk.request_id} goes on after it was aborted"
            return
        wanted = "cancelled" if request.aborted else "length"
        assert chunk.finish_reason == wanted, f"{chunk.request_id} ended by {chunk.finish_reason}"
        assert request.aborted or request.tokens[chunk.choice] == request.max_tokens
        request.open.discard(chunk.choice)
        if not request.open:
            del self._live[chunk.request_id]

    def _look_for_leaks(self) -> None:
        assert not self._live, f"{len(self._live)} requests never ended"
        self.engine.check_invariants()
        free = self.engine.load().num_free_blocks
        assert free == self._info.num_blocks, f"{self._info.num_blocks - free} blocks leaked"
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            self.count.bytes_after_drains.append(torch.cuda.memory_allocated())


def make(shape: dict[str, Any], device: str, **options: Any) -> Runner:
    """Return a runner over random weights with too few blocks for all."""
    where, dtype = torch.device(device), torch.bfloat16 if device != "cpu" else torch.float32
    source = RandomSource(tied=shape["tie_word_embeddings"], dtype=dtype, device=where)
    config = parse_config(Path("random/config.json"), shape)
    model = build_model(config, source, Dequantized(dtype, where), device=where, max_len=2048)
    return make_runner(model, dtype=dtype, **options)


def main() -> None:
    """Run from the command line; ends with 1 if anything leaked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=360.0)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    runner = make(SHAPES[args.shape], args.device, num_blocks=400, max_num_seqs=64, max_num_batched_tokens=512)
    soak = Soak(runner, seed=args.seed)
    began = time.monotonic()
    end, half = began + args.seconds, began + args.seconds / 2
    drains_in_half = 0
    while time.monotonic() < end:
        first_half = time.monotonic() < half
        until = min(time.monotonic() + 20, end)
        soak.run(lambda until=until: time.monotonic() >= until, deterministic=first_half)  # type: ignore[misc]
        drains_in_half += not first_half
        resident = psutil.Process().memory_info().rss >> 20
        sys.stdout.write(f"{time.monotonic() - began:.0f} s: {soak.count}, {resident} MiB resident\n")
        sys.stdout.flush()
        soak.count.bytes_after_drains = soak.count.bytes_after_drains[-drains_in_half:] if drains_in_half else []
    leaked = len(set(soak.count.bytes_after_drains)) > 1
    sys.stdout.write("bytes leaked on the device\n" if leaked else "nothing leaked\n")
    sys.exit(int(leaked))


if __name__ == "__main__":
    main()
