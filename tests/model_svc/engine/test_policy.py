"""Policies are pure functions of what they are told."""

from __future__ import annotations

import pytest

from model_svc.engine.policy import MIN_CHUNK, StepCosts, StepLoad, keep_inter_token_time, policy_named
from wire.errors import InvalidRequestError


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match="fair, fcfs, priority, prefill_first, dynamic_chunk"):
        policy_named("random")


@pytest.mark.parametrize(
    ("load", "share"),
    [
        (StepLoad(512, 0, 5.0, 0.1, 20.0), 512),  # nobody waits for a token
        (StepLoad(512, 3, 5.0, 0.0, 20.0), 512),  # costs are unknown yet
        (StepLoad(512, 3, 5.0, 0.1, 0.0), 512),  # no objective
        (StepLoad(512, 3, 5.0, 0.1, 20.0), 150),
        (StepLoad(512, 3, 5.0, 0.001, 20.0), 512),
        (StepLoad(512, 3, 50.0, 0.1, 20.0), MIN_CHUNK),  # out of reach: prompts still move
    ],
)
def test_the_dynamic_chunk_fills_what_the_objective_leaves(load: StepLoad, share: int) -> None:
    assert keep_inter_token_time(load) == share


def test_costs_follow_the_measured_steps() -> None:
    costs = StepCosts()
    for _ in range(40):
        costs.observe(4.0, 0)
        costs.observe(14.0, 100)
        costs.observe(0.0, 50)  # a runner that measured nothing
    assert costs.decode_step_ms == pytest.approx(4.0)
    assert costs.prefill_token_ms == pytest.approx(0.1)
