"""Priorities among those who run: who makes way, who never does, and that nothing but time is lost by it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from model_svc.engine.drafter import Drafter
from model_svc.engine.policy import POLICIES
from model_svc.engine.roster import PRIORITY_BLOCKS, PRIORITY_SEAT
from tests.model_svc.engine.driver import Driver
from tests.model_svc.engine.guessers import Oracle
from tests.model_svc.engine.test_budget import effort_plan, thinks_too_long
from tests.model_svc.engine.test_grammar import OBJECT, VOCAB_SIZE, matchers, token_bytes
from tests.model_svc.scripted_runner import hashed_reply
from wire.messages import ReasoningPlan

__all__ = ["matchers"]

BLOCK = 4
REPLY = hashed_reply(256)
RANKED = [name for name, policy in POLICIES.items() if policy.ranked]


def ended(driver: Driver) -> list[str]:
    return [chunk.request_id for chunk in driver.chunks if chunk.finish_reason]


def steps_of(driver: Driver, name: str) -> int:
    """Run steps until a request has a token; returns how many."""
    for number in count(1):
        if any(chunk.request_id == name for chunk in driver.step()):
            return number
    raise AssertionError


@pytest.mark.parametrize("policy", RANKED)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_request_of_higher_priority_takes_the_seat_of_the_lowest_latest(policy: str, depth: int) -> None:
    driver = Driver(REPLY, policy=policy, max_num_seqs=3, depth=depth)
    prompts = {"low": [1, 2], "lowest": [3, 4], "low2": [5, 6], "high": [7, 8]}
    for name, priority in (("low", 5), ("lowest", 9), ("low2", 5)):
        driver.ask(name, prompts[name], max_tokens=12, priority=priority, seed=1)
    for _ in range(4):
        driver.step()
    driver.ask("high", prompts["high"], max_tokens=3, priority=0, seed=1)
    assert steps_of(driver, "high") == 1 + depth
    assert [seq.request_id for seq in driver.engine.scheduler.roster.waiting] == ["lowest"]
    driver.run()
    assert driver.preemptions() == {PRIORITY_SEAT: 1}
    for name, prompt in prompts.items():
        alone = Driver(REPLY)
        alone.ask(name, prompt, max_tokens=len(driver.ids(name)), seed=1)
        alone.run()
        assert driver.ids(name) == alone.ids(name)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_equals_and_policies_without_ranks_never_preempt(policy: str) -> None:
    driver = Driver(REPLY, policy=policy, max_num_seqs=2, num_blocks=30)
    for number in range(6):
        driver.ask(f"r{number}", [number] * 10, max_tokens=10, priority=0 if policy in RANKED else -number)
        driver.step()
    driver.run()
    assert not driver.preemptions()


def test_only_as_many_go_as_it_takes_and_nobody_in_vain() -> None:
    driver = Driver(REPLY, policy="fair", num_blocks=20, block_size=BLOCK)
    for number in range(4):
        driver.ask(f"low{number}", [number] * 11, max_tokens=5, priority=number)
    driver.step()
    roster = driver.engine.scheduler.roster
    driver.ask("huge", [9] * 64, max_tokens=1, priority=1)  # would fit beside low0, were low1 not its equal
    driver.step()
    assert not driver.preemptions()
    driver.engine.cancel("huge")
    driver.ask("high", [8] * 27, max_tokens=1, priority=-1)  # 7 blocks and one for each of three
    driver.step()
    assert [seq.request_id for seq in roster.waiting] == ["low3"]
    driver.run()
    assert driver.preemptions() == {PRIORITY_BLOCKS: 1}


def test_blocks_that_victims_share_are_counted_when_the_last_holder_goes() -> None:
    driver = Driver(REPLY, policy="fair", num_blocks=15, block_size=BLOCK)
    driver.ask("warm", [1] * 40, max_tokens=1)
    driver.run()
    for number in range(3):  # ten shared blocks and one of its own each
        driver.ask(f"low{number}", [1] * 40 + [number], max_tokens=3, priority=5)
    driver.step()
    assert driver.engine.load().num_free_blocks == 2
    driver.ask("high", [8] * 40, max_tokens=1)
    assert steps_of(driver, "high") == 1
    assert driver.preemptions() == {PRIORITY_BLOCKS: 3}
    driver.run()


def test_what_a_preempted_prompt_had_computed_is_not_computed_again() -> None:
    driver = Driver(REPLY, policy="fair", max_num_seqs=1, block_size=BLOCK, max_num_batched_tokens=16)
    driver.ask("low", list(range(60)), max_tokens=2, priority=5)
    for _ in range(2):
        driver.step()
    driver.ask("high", [7], max_tokens=1)
    driver.run()
    computed = sum(item.num_tokens for plan in driver.runner.plans for item in plan.sequences)
    assert ended(driver) == ["high", "low"]
    assert computed == 60 + 1 + 1  # the prompt once, a token of the answer, the other prompt


def test_prompts_of_high_priority_displace_no_more_than_a_step_has_tokens_for() -> None:
    driver = Driver(REPLY, policy="fair", max_num_seqs=4, max_num_batched_tokens=16)
    for number in range(4):
        driver.ask(f"low{number}", [number], max_tokens=30, priority=5)
    driver.step()
    for number in range(4):
        driver.ask(f"high{number}", [number] * 40, max_tokens=1)
    driver.step()
    assert driver.preemptions() == {PRIORITY_SEAT: 1}  # the other three go on while one prompt fills the steps
    driver.run()
    assert ended(driver)[:4] == [f"high{number}" for number in range(4)]


def test_answers_that_fill_the_step_leave_tokens_to_a_prompt_of_higher_priority() -> None:
    driver = Driver(REPLY, policy="fair", max_num_seqs=8, max_num_batched_tokens=2)
    for number in range(2):
        driver.ask(f"low{number}", [number], max_tokens=40, priority=5)
    for _ in range(3):
        driver.step()
    driver.ask("high", [7] * 4, max_tokens=1)
    assert steps_of(driver, "high") == 4
    driver.run()


CLOSE = tuple(b"</think>")
LANDS = ReasoningPlan(budget=9, starts_open=True, close_ids=CLOSE, landing=5, landing_ids=CLOSE)
THINKS = ReasoningPlan(budget=5, starts_open=True, close_ids=(258, 10))
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"logprobs": 1},
    "penalties": {"min_tokens": 9, "stop_token_ids": (7, 8, 9)},
    "thinking": {"reasoning": effort_plan("low", None, 60, starts_open=True)},
    "soft landing": {"reasoning": LANDS},
    "grammar": {"grammar": OBJECT},
    "grammar behind thoughts": {"grammar": OBJECT, "reasoning": THINKS},
    "bad words": {"bad_words": [(65,), (65, 66)]},
    "choices": {"n": 2},
}  # fmt: skip


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_preempted_answer_goes_on_as_if_nothing_had_been(matchers: Any, kind: str, depth: int, drafts: int) -> None:
    asked = {"max_tokens": 60, "seed": 3, **KINDS[kind]}
    reply = thinks_too_long if kind == "thinking" else hashed_reply(VOCAB_SIZE)

    def told(disturb_after: Sequence[int]) -> tuple[Any, Any, int]:
        drafter = Drafter(Oracle(lambda: known, 256, errs=3), max_length=drafts, max_drafts=64, adaptive=False)
        driver = Driver(reply, policy="fair", token_bytes=token_bytes, matchers=matchers, depth=depth, num_blocks=128,
                        max_num_seqs=2, max_num_batched_tokens=5, max_model_len=128,
                        drafter=drafter if drafts else None)  # fmt: skip
        driver.ask("low", [1, 2, 3, 1], priority=5, **asked)
        for number in count():
            if number in disturb_after:
                for other in range(2):
                    driver.ask(f"high{number}-{other}", [9] * 7, max_tokens=2)
            if not driver.engine.has_work:
                break
            driver.step()
            driver.engine.events()
        chunks = [chunk for chunk in driver.chunks if chunk.request_id == "low"]
        answers = [driver.received["low", choice].answer for choice in range(asked.get("n", 1))]
        return answers, [chunk.logprobs for chunk in chunks if chunk.logprobs], len(driver.preemptions())

    known: list[list[int]] = []
    undisturbed, logprobs, _ = told(())
    known += [[1, 2, 3, 1, *one.token_ids] for one in undisturbed]
    seen = 0
    for first in (1, 2, 4):
        disturbed, others, num_preemptions = told(range(first, 60, 7))
        seen += num_preemptions
        assert disturbed == undisturbed
        assert [one for each in others for one in each] == [one for each in logprobs for one in each]
    assert seen


def flood(driver: Driver, num_steps: int, *, length: int = 6) -> list[str]:
    """Bring a new request of high priority in every step; returns who of the others ended, in order."""
    for number in range(num_steps):
        driver.ask(f"high{driver.now}-{number}", [number % 200] * length, max_tokens=4)
        driver.step()
        driver.engine.events()
    return [name for name in ended(driver) if not name.startswith("high")]


@pytest.mark.parametrize(("num_seqs", "chunk", "depth"), [(1, 64, 0), (1, 6, 1), (3, 6, 0), (3, 64, 1)])
def test_nobody_starves_under_a_flood_of_high_priority(num_seqs: int, chunk: int, depth: int) -> None:
    driver = Driver(REPLY, policy="fair", max_num_seqs=num_seqs, max_num_batched_tokens=chunk, depth=depth,
                    patience_s=10.0, num_blocks=600)  # fmt: skip
    for number in range(3):
        driver.ask(f"low{number}", [number] * 30, max_tokens=6, priority=10 - number)
        driver.step()
    served = flood(driver, 120)
    assert sorted(served) == ["low0", "low1", "low2"]


def test_without_patience_the_flood_would_starve_them() -> None:
    driver = Driver(REPLY, policy="fair", max_num_seqs=1, patience_s=1e9, num_blocks=600)
    driver.ask("low", [1] * 30, max_tokens=12, priority=10)
    assert flood(driver, 100) == []


def test_one_at_a_time_goes_first_so_that_priority_still_means_something() -> None:
    driver = Driver(REPLY, policy="fair", max_num_seqs=4, patience_s=5.0, num_blocks=600)
    for number in range(8):
        driver.ask(f"low{number}", [number] * 4, max_tokens=30, priority=10)
    for number in range(60):
        for _ in range(3):
            driver.ask(f"high{number}-{_}", [number] * 4, max_tokens=4)
        driver.step()
        driver.engine.events()
        roster = driver.engine.scheduler.roster
        low = [seq for seq in roster.prefilling + roster.decoding if seq.request.priority]
        assert len(low) <= (4 if number < 3 else 1)


def test_whoever_goes_first_is_not_preempted_again() -> None:
    driver = Driver(REPLY, policy="fair", max_num_seqs=1, patience_s=4.0, num_blocks=600)
    driver.ask("low", [1] * 30, max_tokens=40, priority=10)
    flood(driver, 80)
    assert "low" in ended(driver)
    assert driver.preemptions()[PRIORITY_SEAT] <= 6  # then its waits made four seconds together, and one for it


def test_short_waits_between_many_preemptions_add_up() -> None:
    driver = Driver(REPLY, policy="fair", max_num_seqs=1, patience_s=8.0, num_blocks=600)
    driver.ask("low", [1] * 5, max_tokens=40, priority=10)
    for number in range(30):  # two steps of each, then low has the seat again
        driver.ask(f"high{number}", [number] * 6, max_tokens=2)
        for _ in range(4):
            driver.step()
            driver.engine.events()
    assert driver.preemptions()[PRIORITY_SEAT] <= 5


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_preempted_request_can_be_cancelled_with_its_step_in_flight(depth: int) -> None:
    driver = Driver(REPLY, policy="fair", max_num_seqs=1, depth=depth)
    driver.ask("low", [1] * 5, max_tokens=30, priority=5)
    for _ in range(3):
        driver.step()
    driver.ask("high", [2], max_tokens=2)
    driver.step()
    driver.engine.cancel("low")
    driver.run()
    assert (driver.reason("low"), driver.reason("high")) == ("cancelled", "length")
    assert driver.engine.load().num_free_blocks == driver.runner.info.num_blocks
