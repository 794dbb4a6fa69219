"""Where a CPU step's processor time goes, op by op: a taped step's native calls one by one on one thread.

    python -m loadtest.cpu_ops MODEL_DIR [--streams 1] [--context 128 | --prompt 512] [--rounds 9]

A step decodes one token of each stream, or with --prompt takes the streams' prompts whole. Calls run in their order, so
that caches hold what they would hold; each op's best and median round are summed by kind and size. Processor time of
the thread: other jobs only make it worse.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from kernels.native import record
from kernels.native.library import library
from kernels.native.packed_weight import FORMATS
from kernels.native.record import Record
from kernels.native.tape import Arena, Tape
from model_svc.engine.plan import NewSequence, SequenceStep, StepPlan
from model_svc.runner.load import load_runner
from wire.messages import SamplingParams, pack_ids

_KINDS = ("quantize", "linear", "norm", "activation", "rope", "attention", "merge", "embedding", "sample", "finite")


def taped(model: Path, streams: int, context: int) -> tuple[Any, Tape]:
    """Return a runner that has recorded a step in which so many streams decode, and the tape."""
    runner: Any = load_runner(model, dtype="auto", num_blocks=1024, max_num_seqs=32, max_model_len=1024, threads=1)
    for number in range(4):
        start, size = (0, context) if number == 0 else (context + number - 1, 1)
        runner.collect(runner.submit(_plan(number + 1, streams, start, size, sample=number > 0)))
    return runner, next(found.tape for found in runner._tapes.values() if found is not None)


def taped_prompts(model: Path, streams: int, tokens: int) -> tuple[Any, Tape]:
    """Return a runner that has noted down a step over prompts, and the tape: the engine runs these call by call."""
    runner: Any = load_runner(model, dtype="auto", num_blocks=1024, max_num_seqs=32, max_model_len=1024, threads=1)
    tape, eager = Tape(Arena()), runner._eager

    def noted(step: Any) -> Any:
        with tape.recording():
            return eager(step)

    runner._eager = noted
    runner.collect(runner.submit(_plan(1, streams, 0, tokens, sample=True)))
    return runner, tape


def _plan(number: int, streams: int, start: int, size: int, *, sample: bool) -> StepPlan:
    ids = pack_ids([n * 104729 % 40000 + 100 for n in range(1024)])
    blocks = 1024 // 32
    end = start + size
    new = NewSequence(sampling=SamplingParams(temperature=0.0), seed=0, prompt_ids=ids[: 4 * end])
    shares = [
        SequenceStep(
            slot=s, start=start, num_tokens=size, token_ids=ids[4 * start : 4 * end], new=None if start else new,
            new_blocks=() if start else tuple(range(s * blocks, (s + 1) * blocks)), sample=sample,
        )
        for s in range(streams)
    ]  # fmt: skip
    return StepPlan(step=number, sequences=tuple(shares))


def timed(call: Callable[[], object]) -> float:
    """Return the milliseconds of processor time of this thread that a call takes."""
    begin = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - begin) * 1e-6


def label(call: Record) -> str:
    """Name a call by kind, and a product by its size and format."""
    kind = _KINDS[call.kind]
    if call.kind != record.LINEAR:
        return kind
    _, inputs, outputs, _, number = call.numbers[:5]
    return f"{kind} {FORMATS[number]} {inputs} -> {outputs}"


def weight_bytes(call: Record) -> int:
    """Return how much a product reads of its weight, 0 for other calls."""
    if call.kind != record.LINEAR:
        return 0
    return int(library().tiles_bytes(call.numbers[4], call.numbers[2], call.numbers[1]))


def parts_of(tape: Tape) -> list[tuple[str, int, Callable[[], object]]]:
    """Return name, bytes of weight and the call itself for all that a tape does, in order."""
    found: list[tuple[str, int, Callable[[], object]]] = []
    for part in tape._parts:
        calls: list[Record] | None = getattr(part, "records", None)
        found += [("torch", 0, part)] if calls is None else [_named(call) for call in calls]
    return found


def _named(call: Record) -> tuple[str, int, Callable[[], object]]:
    return label(call), weight_bytes(call), partial(library().run, call.packed(), 1, 1)


def profile(tape: Tape, rounds: int) -> Table:
    """Run the tape's parts one by one and sum up."""
    parts = parts_of(tape)
    times = list(zip(*([timed(call) for _, _, call in parts] for _ in range(rounds)), strict=True))
    kinds: dict[str, list[tuple[float, float, int]]] = {}
    for (name, size, _), seen in zip(parts, times, strict=True):
        kinds.setdefault(name, []).append((min(seen), statistics.median(seen), size))
    shown = Table("op", "calls", "ms, best", "ms, median", "GB/s, best", box=None)
    sums = {name: [sum(column) for column in zip(*rows, strict=True)] for name, rows in kinds.items()}
    for name, (best, median, size) in sorted(sums.items(), key=lambda item: -item[1][0]):
        rate = f"{size / best * 1e-6:.1f}" if size else ""
        shown.add_row(name, str(len(kinds[name])), f"{best:.3f}", f"{median:.3f}", rate)
    totals = [sum(row[n] for row in sums.values()) for n in range(2)]
    shown.add_row("all", str(len(parts)), *(f"{total:.3f}" for total in totals))
    return shown


def main() -> None:
    """Print the table, and the whole tape's own time."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    if options.prompt:
        runner, tape = taped_prompts(options.model_dir, options.streams, options.prompt)
    else:
        runner, tape = taped(options.model_dir, options.streams, options.context)
    console = Console(width=120)
    with torch.inference_mode():
        console.print(profile(tape, options.rounds))
        whole = [timed(tape.replay) for _ in range(options.rounds)]
    console.print(
        f"the tape as it runs: best {min(whole):.3f} ms, median {statistics.median(whole):.3f} ms; {runner.info.device}"
    )


if __name__ == "__main__":
    main()
