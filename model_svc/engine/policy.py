"""Who goes first and how much prefill a step may hold: pure functions, chosen by name.

A new policy is a new entry of `POLICIES`; the scheduler asks nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from wire.errors import InvalidRequestError

MIN_CHUNK = 16  # tokens; less would never finish a long prompt


class StepLoad(NamedTuple):
    """What a policy may know when a step is planned. Times are running means, 0 while unknown.

    `token_budget` is the most tokens a step may hold, `num_decoding` the sequences that want their next token.
    """

    token_budget: int
    num_decoding: int
    decode_step_ms: float = 0.0
    prefill_token_ms: float = 0.0
    inter_token_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """How to order sequences and split a step.

    `key(priority, mark, arrival)`: the smallest goes first, the largest is preempted first; `mark` is that of the
    tenant's fair share. `prefill_share`: tokens of a step that prompts may take. With `prefill_first` prompts take
    theirs before running answers do. `ranked`: keys begin with the priority, and a higher one preempts lower ones.
    """

    key: Callable[[int, int, int], tuple[int, ...]]
    prefill_share: Callable[[StepLoad], int]
    prefill_first: bool = False
    ranked: bool = False


def by_arrival(priority: int, mark: int, arrival: int) -> tuple[int, ...]:  # noqa: ARG001  (one signature for all)
    """First come, first served."""
    return (arrival,)


def by_priority(priority: int, mark: int, arrival: int) -> tuple[int, ...]:  # noqa: ARG001
    """Lower priority numbers first, among equals by arrival."""
    return (priority, arrival)


def by_share(priority: int, mark: int, arrival: int) -> tuple[int, ...]:
    """Lower priority numbers first, among equals the tenant with the fewest tokens; of one tenant by arrival."""
    return (priority, mark, arrival)


def whole_budget(load: StepLoad) -> int:
    """Let prompts fill the step."""
    return load.token_budget


def keep_inter_token_time(load: StepLoad) -> int:
    """Let prompts take what keeps a step, which is the gap between two tokens of an answer, under the objective."""
    if not load.num_decoding or load.inter_token_ms <= 0 or load.prefill_token_ms <= 0:
        return load.token_budget
    room_ms = load.inter_token_ms - load.decode_step_ms
    return max(MIN_CHUNK, min(load.token_budget, int(room_ms / load.prefill_token_ms)))


POLICIES: dict[str, SchedulingPolicy] = {
    "fair": SchedulingPolicy(by_share, whole_budget, ranked=True),
    "fcfs": SchedulingPolicy(by_arrival, whole_budget),
    "priority": SchedulingPolicy(by_priority, whole_budget, ranked=True),
    "prefill_first": SchedulingPolicy(by_arrival, whole_budget, prefill_first=True),
    "dynamic_chunk": SchedulingPolicy(by_share, keep_inter_token_time, ranked=True),
}


def policy_named(name: str) -> SchedulingPolicy:
    """Return a policy by its name.

    Raises InvalidRequestError for an unknown one, naming those there are.
    """
    if name not in POLICIES:
        raise InvalidRequestError(f"unknown policy {name!r}; there are {', '.join(POLICIES)}", param="policy")
    return POLICIES[name]


class StepCosts:
    """Running means of what steps cost, from the runner's own measurements."""

    _WEIGHT = 0.2

    def __init__(self) -> None:
        self.decode_step_ms = 0.0
        self.prefill_token_ms = 0.0

    def observe(self, compute_ms: float, num_prefill_tokens: int) -> None:
        """Note one step: of answers only, or with prompt tokens in it."""
        if compute_ms <= 0:
            return
        if num_prefill_tokens == 0:
            self.decode_step_ms = self._mean(self.decode_step_ms, compute_ms)
        else:
            extra_ms = max(0.0, compute_ms - self.decode_step_ms)
            self.prefill_token_ms = self._mean(self.prefill_token_ms, extra_ms / num_prefill_tokens)

    def _mean(self, mean: float, value: float) -> float:
        return value if mean == 0.0 else mean + self._WEIGHT * (value - mean)
