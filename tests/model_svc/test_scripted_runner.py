"""The fake is strict: a plan that a real runner would compute wrongly is noticed."""

from __future__ import annotations

from typing import Any

import pytest

from model_svc.engine.plan import NewSequence, SequenceStep, StepPlan
from tests.model_svc.scripted_runner import ScriptedRunner, scripted_reply
from wire.messages import SamplingParams, pack_ids

PROMPT = [5, 6, 7]


def first(**changes: Any) -> SequenceStep:
    new = NewSequence(sampling=SamplingParams(), seed=0, prompt_ids=pack_ids(PROMPT))
    fields = {"slot": 0, "start": 0, "num_tokens": 3, "token_ids": pack_ids(PROMPT), "new_blocks": (1,), "new": new}
    return SequenceStep(**{**fields, **changes})


def second(**changes: Any) -> SequenceStep:
    fields: dict[str, Any] = {"slot": 0, "start": 3, "num_tokens": 1, "token_ids": pack_ids([9]), "output_index": 1}
    return SequenceStep(**{**fields, **changes})


def run(*steps: SequenceStep, **sizes: int) -> None:
    runner = ScriptedRunner(scripted_reply(9), **sizes)
    for number, item in enumerate(steps):
        runner.collect(runner.submit(StepPlan(step=number, sequences=(item,))))


def test_a_right_plan_runs() -> None:
    run(first(), second(), second(start=4, new_blocks=(2,), output_index=2))
    run(first(), second(token_ids=b"", from_device=True), depth=1)


@pytest.mark.parametrize(
    ("steps", "fault"),
    [
        ([first(token_ids=pack_ids([5, 6, 8]))], "a wrong input id"),
        ([first(start=1, num_tokens=2, token_ids=pack_ids([6, 7]))], "holds something else"),
        ([first(), second(token_ids=pack_ids([8]))], "not drawn"),
        ([first(), second(start=4, output_index=2)], "left out"),
        ([first(), second(output_index=0)], "output index"),
        ([first(num_tokens=2, token_ids=pack_ids([5, 6]))], "not after the last token"),
        ([first(new_blocks=(1, 1))], "twice"),
        ([first(), first(slot=1), second()], "holds something else"),
    ],
)
def test_a_wrong_plan_is_noticed(steps: list[SequenceStep], fault: str) -> None:
    if fault == "holds something else" and len(steps) == 3:
        other = NewSequence(sampling=SamplingParams(), seed=0, prompt_ids=pack_ids([1, 2, 3]))
        steps[1] = first(slot=1, token_ids=pack_ids([1, 2, 3]), new=other)  # takes the first one's block
    with pytest.raises(AssertionError, match=fault):
        run(*steps)


def test_more_steps_in_flight_than_the_depth_are_noticed() -> None:
    runner = ScriptedRunner(scripted_reply(9), depth=0)
    runner.submit(StepPlan(step=0, sequences=(first(),)))
    with pytest.raises(AssertionError, match="in flight"):
        runner.submit(StepPlan(step=1, sequences=(second(),)))
