"""What a step costs the host: the engine over a runner that computes nothing.

    python -m loadtest.scheduler --sequences 1,32,256 --steps 2000 --depth 1

Prints microseconds of processor time per step, split into planning (until submit), committing (after collect) and the
message to the service; of all steps the lower quartile, since neighbours on the machine only ever add. There is no time
asserted anywhere: machines differ; compare two versions on one.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from model_svc.engine.engine import Engine
from model_svc.engine.plan import RunnerInfo, SampledToken, StepOutput, StepPlan, slots
from model_svc.engine.request import EngineRequest
from model_svc.engine_messages import Progress
from wire.messages import Prompt, ReasoningPlan, SamplingParams, pack_ids


class IdleRunner:
    """Draws the same token for everybody and notes when it was called."""

    def __init__(self, info: RunnerInfo) -> None:
        self.info = info
        self.submitted_at = self.collected_at = 0

    def submit(self, plan: StepPlan) -> StepPlan:
        """Note the end of planning."""
        self.submitted_at = time.thread_time_ns()
        return plan

    def mask(self, handle: StepPlan, masks: Mapping[int, bytes]) -> None:
        """Nothing is masked here."""

    def collect(self, handle: StepPlan) -> StepOutput:
        """Make up an output, outside the measured time."""
        tokens = tuple(SampledToken(slot=slot, token_id=65) for slot in slots(handle))
        output = StepOutput(step=handle.step, tokens=tokens, compute_ms=1.0)
        self.collected_at = time.thread_time_ns()
        return output

    def close(self) -> None:
        """Nothing to free."""


def make_engine(num_sequences: int, depth: int, prompt_len: int, *, thinking: bool) -> tuple[Engine, IdleRunner]:
    """Return an engine with that many running sequences."""
    info = RunnerInfo(
        num_blocks=num_sequences * 1024,
        block_size=16,
        max_num_seqs=num_sequences,
        max_num_batched_tokens=8192,
        max_model_len=16_384,
        vocab_size=50_000,
        depth=depth,
    )
    runner = IdleRunner(info)
    engine = Engine(runner, token_bytes=lambda _: b" token", eos_token_ids=(2,))
    plan = ReasoningPlan(budget=10**6, starts_open=True, close_ids=(7,), landing=64, landing_ids=(7,))
    for number in range(num_sequences):
        ids = [10 + (number * 31 + position) % 1000 for position in range(prompt_len)]
        prompt = Prompt(
            token_ids=pack_ids(ids),
            num_tokens=prompt_len,
            block_root=b"r" * 16,
            max_tokens=16_000 - prompt_len,
            reasoning=plan if thinking else None,
        )
        engine.add(EngineRequest(request_id=f"request-{number:06}", prompt=prompt, sampling=SamplingParams()))
    while engine.load().num_waiting or engine.scheduler.roster.prefilling:
        engine.step()
    return engine, runner


class Costs(NamedTuple):
    """Microseconds of processor time of each step: until submit, after collect, and for the message to the service."""

    plan: list[float]
    commit: list[float]
    message: list[float]


def measure(engine: Engine, runner: IdleRunner, steps: int) -> Costs:
    """Return what the steps cost."""
    encoder = msgspec.msgpack.Encoder()
    costs = Costs([], [], [])
    for step in range(steps):
        begin = time.thread_time_ns()
        chunks = engine.step()
        committed = time.thread_time_ns()
        encoder.encode(Progress(step=step, chunks=tuple(chunks), events=tuple(engine.events())))
        end = time.thread_time_ns()
        costs.plan.append((runner.submitted_at - begin) / 1e3)
        costs.commit.append((committed - runner.collected_at) / 1e3)
        costs.message.append((end - committed) / 1e3)
    return costs


def main(argv: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", default="1,32,256")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=200, help="prompt tokens of each sequence")
    parser.add_argument("--thinking", action="store_true", help="follow think tags and count a budget")
    args = parser.parse_args(argv)
    sys.stdout.write("sequences     plan   commit  message     step   a sequence   (us, lower quartile)\n")
    for number in map(int, args.sequences.split(",")):
        engine, runner = make_engine(number, args.depth, args.prompt, thinking=args.thinking)
        gc.collect()
        gc.freeze()  # as the engine's process does
        costs = measure(engine, runner, args.steps)
        plan, commit, message = (statistics.quantiles(values, n=4)[0] for values in costs)
        step = plan + commit + message
        sys.stdout.write(f"{number:>9} {plan:8.1f} {commit:8.1f} {message:8.1f} {step:8.1f} {step / number:12.2f}\n")


if __name__ == "__main__":
    main()
