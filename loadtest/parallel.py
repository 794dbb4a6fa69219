"""A model on several cards against the same on one: steps of an 8B model's shape with random weights.

    python -m loadtest.parallel [--ranks 2] [--tests decode1,prefill2048,...] [--json out.json]

The floor of several ranks is one card's floor divided by them, and the exchange: two sums a layer of T x E numbers in
bf16, each of which takes at least the latency of a small one over NVLink, or what its bytes take.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from loadtest.device_time import ceilings
from loadtest.engine_bench import Bench, random_runner
from loadtest.engine_tests import decode, prefill
from loadtest.shapes import SHAPES
from model_svc.engine.plan import Runner
from model_svc.layers.group import Group
from model_svc.parallel.load import load_runner

TESTS = ("decode1", "decode8", "decode64", "decode256", "prefill2048", "prefill8192")
_LATENCY_S = 10e-6  # a small sum over NVLink, within a recorded step
_LINK_BYTES_S = 450e9  # one direction of an H100's or H200's NVLink
_SIZES = {"num_blocks": 6144, "max_num_seqs": 256, "max_num_batched_tokens": 8192}


def rank_runner(model_path: str, *, device: str, group: Group, **options: Any) -> Runner:
    """Return one rank's runner (the factory that every rank calls)."""
    shape = json.loads((Path(model_path) / "config.json").read_text())
    options.pop("threads", None)
    return random_runner(shape, device, group, **options)[0]


def shared_runner(shape: dict[str, Any], on: str, **options: Any) -> tuple[Runner, dict[str, float]]:
    """Return the runner of a model on several ranks or in several stages, and how long it took."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape))
        factory = "loadtest.parallel:rank_runner"
        runner = load_runner(folder, factory=factory, device=on, **options)
    return runner, {"all": time.perf_counter() - began}


def exchange_floor_ms(shape: dict[str, Any], tokens: int, ranks: int) -> float:
    """Return what the sums of one step take at least."""
    sent = 2 * (ranks - 1) / ranks * tokens * shape["hidden_size"] * 2
    return float(2e3 * shape["num_hidden_layers"] * max(_LATENCY_S, sent / _LINK_BYTES_S))


def timed(bench: Bench, test: str) -> tuple[float, Callable[[Bench, int], float]]:
    """Return what a test takes in ms, and its floor on a number of ranks for the bench of one."""
    kind, size = test.rstrip("0123456789"), int("".join(filter(str.isdigit, test)))
    if kind == "decode":
        took, context = decode(bench, size, 64)
        return (
            took,
            lambda one, ranks: one.floors.decode_ms(size, context) / ranks + exchange_floor_ms(one.shape, size, ranks),
        )
    took = prefill(bench, size, 3)
    return took, lambda one, ranks: one.floors.prefill_ms(size) / ranks + exchange_floor_ms(one.shape, size, ranks)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tests", default=",".join(TESTS))
    parser.add_argument("--shape", default="llama-8b", choices=sorted(SHAPES))
    parser.add_argument("--device", default="cuda", help="cpu tries the harness alone")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    console = Console(width=130)
    on_gpu = args.device != "cpu"
    if on_gpu and torch.cuda.device_count() < args.ranks:
        console.print(f"{args.ranks} ranks need as many CUDA devices; here are {torch.cuda.device_count()}")
        return 1
    ceiling = ceilings() if on_gpu else (1.0, 1.0)
    sizes: dict[str, Any] = _SIZES if on_gpu else {"num_blocks": 256, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    shape = SHAPES[args.shape]
    one = Bench(shape, ceiling, on=args.device, **sizes)
    took = {test: timed(one, test) for test in args.tests.split(",")}
    console.print(f"1 rank: {one.seconds}")
    one.runner.close()
    gc.collect()
    several = Bench(shape, ceiling, on=args.device, make=partial(shared_runner, tensor_parallel=args.ranks), **sizes)
    console.print(f"{args.ranks} ranks: {several.seconds}")
    card = torch.cuda.get_device_name() if on_gpu else "cpu"
    table = Table("test", "1 rank ms", f"{args.ranks} ranks ms", "faster", "floor ms", "of floor", title=card)
    figures = {}
    for test, (alone, floor_of) in took.items():
        together, floor = timed(several, test)[0], floor_of(one, args.ranks)
        figures[test] = {"one_ms": alone, "ranks_ms": together, "floor_ms": floor}
        times = (f"{value:.3f}" for value in (alone, together))
        table.add_row(test, *times, f"{alone / together:.2f} x", f"{floor:.3f}", f"{floor / together:.0%}")
        console.print(f"{test}: {alone:.3f} -> {together:.3f} ms")
    several.runner.close()
    console.print(table)
    if args.json:
        args.json.write_text(json.dumps({"card": card, "ranks": args.ranks, "figures": figures}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
