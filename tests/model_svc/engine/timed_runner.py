"""The scripted runner on a machine of known speed, in simulated time: what a policy gains or loses there, to the token.

A device computes steps one after another, as long as a table says; a host plans and reads them. Where the host plans
ahead its time is hidden, as it is on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from model_svc.engine.drafter import Drafter
from model_svc.engine.engine import Engine
from model_svc.engine.plan import StepOutput, StepPlan
from model_svc.engine.request import EngineRequest
from model_svc.spec.proposer import Guess
from tests.model_svc.scripted_runner import ScriptedRunner
from wire.messages import Prompt, SamplingParams, pack_ids

# ms of a step by sequences and by guesses
Cost = Callable[[int, int], float]


def by_table(table: dict[int, float], at: float) -> float:
    """Return the value between the two nearest keys, on a line; beyond the last one it goes on."""
    keys = sorted(table)
    upper = next((key for key in keys[1:] if key >= at), keys[-1])
    lower = keys[keys.index(upper) - 1]
    return table[lower] + (table[upper] - table[lower]) * (at - lower) / (upper - lower)


_H200_PLAIN = {1: 3.86, 2: 4.06, 4: 4.08, 8: 4.11, 32: 4.6, 64: 5.2}
_H200_ROWS = {2: 4.3, 8: 4.35, 16: 4.6, 32: 5.1, 64: 6.1, 128: 8.0}  # with guesses, without the host's part


def h200(num_sequences: int, num_guesses: int) -> float:
    """8B shape, bf16, one H200: fused kernels for plain steps, and rows that cost little."""
    if num_guesses:
        return by_table(_H200_ROWS, num_sequences + num_guesses)
    return by_table(_H200_PLAIN, num_sequences)


def cpu(num_sequences: int, num_guesses: int) -> float:
    """135M, one thread: each row beyond the first few costs its share."""
    return by_table({1: 8.8, 2: 9.8, 4: 13.1, 8: 17.6, 16: 28.0, 32: 52.0, 64: 100.0}, num_sequences + num_guesses)


class TimedRunner(ScriptedRunner):
    """Takes simulated time."""

    def __init__(self, cost: Cost, host_ms: float, reply: Callable[..., int], **sizes: int) -> None:
        super().__init__(reply, **sizes)
        self.now_ms = 0.0
        self._cost = cost
        self._host_ms = host_ms
        self._free_ms = 0.0
        self._ends: dict[int, tuple[float, float]] = {}

    def submit(self, plan: StepPlan) -> int:
        """Plan on the host, and let the device begin when it is free."""
        self.now_ms += self._host_ms
        prompts = any(item.new is not None for item in plan.sequences)
        guesses = sum(item.num_drafts for item in plan.sequences)
        cost = 20.0 if prompts else self._cost(len(plan.sequences), guesses)
        self._free_ms = max(self.now_ms, self._free_ms) + cost
        self._ends[plan.step] = (self._free_ms, cost)
        return super().submit(plan)

    def _verified_prefix(self, slot: object, start: int) -> int:  # noqa: ARG002
        return 0  # what is read from the cache is other tests' matter, and takes the square of an answer's length

    def collect(self, handle: int) -> StepOutput:
        """Wait for the device."""
        end, cost = self._ends.pop(handle)
        self.now_ms = max(self.now_ms, end)
        return msgspec.structs.replace(super().collect(handle), compute_ms=cost)


class Partly:
    """Knows that answers count upwards; of 100 guesses for a sequence so many are right, by its first token."""

    def __init__(self, right: Callable[[int], int]) -> None:
        self._right = right

    def start(self, prediction: Sequence[int] = ()) -> Partly:  # noqa: ARG002
        return self

    def guess(self, token_ids: Sequence[int], limit: int) -> Guess:
        right = self._right(token_ids[0])
        at = len(token_ids) + 11 * token_ids[0]
        # A multiplier coprime to 101 makes the misses fall irregularly, and the same in every run.
        return Guess([(7 if (at + n) * 37 % 101 < right else 8) for n in range(limit)])


def seven(_context: Sequence[int], _index: int, _seed: int) -> int:
    """Always says 7."""
    return 7


def rates(
    cost: Cost, num_sequences: int, drafter: Drafter | None, *, depth: int, host_ms: float, num_steps: int = 200
) -> list[float]:
    """Return each answer's tokens in the simulated time of one plain step, seen over that of `num_steps`."""
    runner = TimedRunner(
        cost, host_ms, seven, depth=depth, num_blocks=num_sequences * 128, block_size=16, max_num_seqs=num_sequences,
        max_num_batched_tokens=1024, max_model_len=2048,
    )  # fmt: skip
    engine = Engine(runner, token_bytes=lambda _: b"x", clock=lambda: runner.now_ms / 1e3, drafter=drafter)
    for n in range(num_sequences):
        prompt = Prompt(
            token_ids=pack_ids([n, *range(9)]), num_tokens=10, block_root=bytes([n]), max_tokens=2000,
            block_hashes=b"", block_size=16,
        )  # fmt: skip
        engine.add(EngineRequest(request_id=f"r{n}", prompt=prompt, sampling=SamplingParams(ignore_eos=True)))
    said = [0] * num_sequences
    while not all(said):
        _step(engine, said)
    began, before = runner.now_ms, list(said)
    while engine.has_work and runner.now_ms < began + num_steps * cost(num_sequences, 0):
        _step(engine, said)
    lasted = (runner.now_ms - began) / cost(num_sequences, 0)
    return [(after - first) / lasted for after, first in zip(said, before, strict=True)]


def _step(engine: Engine, said: list[int]) -> None:
    for chunk in engine.step():
        said[int(chunk.request_id[1:])] += len(chunk.token_ids)
    engine.events()
