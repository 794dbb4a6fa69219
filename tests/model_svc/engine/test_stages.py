"""A model in stages: answers take turns, so that the steps in flight share none and each stage has its part of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.model_svc.engine.driver import Driver
from tests.model_svc.scripted_runner import hashed_reply


def driver(stages: int, **sizes: Any) -> Driver:
    return Driver(hashed_reply(256), stages=stages, depth=stages - 1, **sizes)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("num_answers", [1, 2, 5, 8])
def test_answers_take_turns_and_none_waits_longer_than_the_others(stages: int, num_answers: int) -> None:
    house = driver(stages)
    for n in range(num_answers):
        house.ask(f"r{n}", [n + 1] * 3, max_tokens=12, ignore_eos=True)
    house.run()
    decodes = [plan for plan in house.runner.plans if not any(item.new for item in plan.sequences)]
    part = -(-num_answers // stages)
    assert max(len(plan.sequences) for plan in decodes) == part
    steps: dict[int, list[int]] = {n: [] for n in range(num_answers)}
    for plan in decodes[: -2 * stages]:
        for item in plan.sequences:
            steps[item.slot].append(plan.step)
    gaps = {b - a for found in steps.values() for a, b in pairwise(found)}
    assert gaps <= {min(stages, num_answers)}


def test_chunks_of_one_prompt_follow_one_another_through_the_stages() -> None:
    house = driver(3, max_num_batched_tokens=8)
    house.ask("r", list(range(30)), max_tokens=2, ignore_eos=True)
    for _ in range(2):
        assert not house.step()
    assert [plan.sequences[0].start for plan in house.runner.plans] == [0, 8]
    house.run()
    assert [plan.sequences[0].start for plan in house.runner.plans] == [0, 8, 16, 24, 30]


def test_a_prompt_comes_in_chunks_to_a_slot_whose_last_answer_was_cancelled_in_flight() -> None:
    house = driver(3, max_num_seqs=1, max_num_batched_tokens=1)
    house.ask("gone", [1], max_tokens=4)
    house.step()
    house.engine.cancel("gone")
    house.ask("r", [2, 3, 4], max_tokens=2, ignore_eos=True)
    house.run()
    assert (house.reason("gone"), house.reason("r"), len(house.ids("r"))) == ("cancelled", "length", 2)


def test_answers_are_those_of_one_stage() -> None:
    found = []
    for stages in (1, 2, 3):
        house = driver(stages, num_blocks=12, max_num_batched_tokens=8)  # some are preempted
        for n in range(6):
            house.ask(f"r{n}", [n + 1] * (3 + n), max_tokens=9)
        house.run()
        assert stages == 1 or house.engine.scheduler.roster.num_preemptions
        found.append([house.ids(f"r{n}") for n in range(6)])
    assert found[0] == found[1] == found[2]
