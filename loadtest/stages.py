"""A model in stages against the same in one process, and against ranks: tokens/s of answers and of prompts.

    python -m loadtest.stages [MODEL_DIR] [--device cuda] [--stages 2] [--ranks 2] [--streams 1,8,64] [--json out.json]

Without a model directory it is a shape with random weights (`--shape`). All are driven by the engine and answer the
same prompts greedily; `same` tells how many answers are equal. On a CPU a stage has one thread, one process as many as
there are stages.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from loadtest.engine_bench import random_runner
from loadtest.parallel import shared_runner
from loadtest.shapes import SHAPES
from model_svc.engine.engine import Engine
from model_svc.engine.plan import Runner
from model_svc.engine.request import EngineRequest
from model_svc.parallel.load import load_runner
from model_svc.runner.load import load_runner as load_alone
from wire.messages import Prompt, SamplingParams, pack_ids

_SHORT = 16  # tokens of a prompt where answers are timed
_MANY = 16  # prompts where these are
_SIZES = {"num_blocks": 9216, "max_num_seqs": 256, "max_num_batched_tokens": 2048}
_SIZES_ON_CPU = {"num_blocks": 1024, "max_num_seqs": 64, "max_num_batched_tokens": 512}
Answers = dict[str, list[int]]
Figures = dict[str, tuple[float, Answers]]


def run(runner: Runner, num_streams: int, prompt: int, max_tokens: int) -> tuple[float, Answers]:
    """Answer so many prompts at once; returns the seconds from the last first token to the end, and the ids.

    With one token each it is the time of the prompts.
    """
    engine = Engine(runner, token_bytes=lambda _: b"x")
    draw, found = random.Random(num_streams), Answers()
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    began = time.perf_counter()
    for n in range(num_streams):
        ids = [draw.randrange(5, runner.info.vocab_size) for _ in range(prompt)]
        asked = Prompt(token_ids=pack_ids(ids), num_tokens=prompt, max_tokens=max_tokens)
        engine.add(EngineRequest(request_id=str(n), prompt=asked, sampling=sampling))
    while engine.has_work:
        for chunk in engine.step():
            if max_tokens > 1 and chunk.request_id not in found:
                began = time.perf_counter()
            found.setdefault(chunk.request_id, []).extend(chunk.token_ids)
        engine.events()
    return time.perf_counter() - began, found


def measure(runner: Runner, streams: Sequence[int], prompt: int) -> Figures:
    """Return tokens/s and answers by test, each after a run that is not counted."""
    figures: Figures = {}
    while getattr(runner, "use_idle_time", bool)():
        pass
    for num_streams in streams:
        run(runner, num_streams, _SHORT, 8)
        seconds, found = run(runner, num_streams, _SHORT, 128)
        figures[f"answers, {num_streams} streams"] = (num_streams * 127 / seconds, found)
    for count in (1, _MANY):
        run(runner, count, prompt, 1)
        seconds, found = run(runner, count, prompt, 1)
        figures[f"{count} x prompt of {prompt}"] = (count * prompt / seconds, found)
    runner.close()
    gc.collect()
    return figures


def runner_of(args: argparse.Namespace, shared: dict[str, int]) -> Runner:
    """Return a runner of the model; `shared` is the setting by which several processes share it, or empty."""
    if args.model is None:
        make = shared_runner if shared else random_runner
        sizes = _SIZES_ON_CPU if args.device == "cpu" else _SIZES
        options: dict[str, Any] = {**shared, **sizes}
        return make(SHAPES[args.shape], args.device, **options)[0]
    options = {"device": args.device, "dtype": args.dtype, "kv_memory_bytes": 1 << 29, **shared}
    if args.device == "cpu":
        options["threads"] = 1 if shared else args.stages
    return load_runner(args.model, **options) if shared else load_alone(args.model, **options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--shape", default="llama-8b", choices=sorted(SHAPES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=0, help="also measure so many ranks of tensor parallelism")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    streams = [int(number) for number in args.streams.split(",")]
    console = Console(width=130)
    found: dict[str, Figures] = {}
    ways = {"one": {}, f"{args.stages} stages": {"pipeline_parallel": args.stages}}
    if args.ranks > 1:
        ways[f"{args.ranks} ranks"] = {"tensor_parallel": args.ranks}
    for name, shared in ways.items():
        found[name] = measure(runner_of(args, shared), streams, args.prompt)
        console.print(f"{name}: " + ", ".join(f"{test} {rate:.1f}" for test, (rate, _) in found[name].items()))
    card = torch.cuda.get_device_name() if args.device != "cpu" else "cpu"
    first, *others = found
    table = Table("tokens/s", first, *(column for name in others for column in (name, "faster", "same")), title=card)
    for test, (before, wanted) in found[first].items():
        row = [test, f"{before:.1f}"]
        for name in others:
            after, answers = found[name][test]
            same = sum(answers[request] == ids for request, ids in wanted.items())
            row += [f"{after:.1f}", f"{after / before:.2f} x", f"{same} of {len(wanted)}"]
        table.add_row(*row)
    console.print(table)
    if args.json:
        rates = {name: {test: rate for test, (rate, _) in figures.items()} for name, figures in found.items()}
        args.json.write_text(json.dumps({"card": card, "rates": rates}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
