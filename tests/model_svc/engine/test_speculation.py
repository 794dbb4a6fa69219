"""Guesses in the engine: budgets bind, grammars hold, stops cut, and nothing but the number of steps changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from model_svc.engine.drafter import Drafter
from model_svc.engine.matchers import LlguidanceMatchers
from model_svc.spec.ngram import NgramProposer
from model_svc.spec.proposer import Proposer
from tests.model_svc.engine.driver import EOS, Driver
from tests.model_svc.engine.guessers import Oracle, Parrot
from tests.model_svc.engine.test_budget import effort_plan, thinks_too_long
from tests.model_svc.engine.test_grammar import OBJECT, VOCAB_SIZE, answer_text, matchers, token_bytes
from tests.model_svc.scripted_runner import Reply, hashed_reply, scripted_reply
from tokenizer_svc.effort import EFFORTS
from wire.messages import ReasoningPlan

__all__ = ["matchers"]

CLOSE = [*b"</think>"]


def driver_of(
    reply: Reply, proposer: Proposer | None, length: int = 4, *, adaptive: bool = False, **options: Any
) -> Driver:
    drafter = Drafter(proposer, max_length=length, max_drafts=64, adaptive=adaptive) if proposer is not None else None
    return Driver(reply, drafter=drafter, **options)


def knows(*sequences: Sequence[int], errs: int = 0) -> Oracle:
    return Oracle(lambda: sequences, 300, errs=errs)


def load(driver: Driver) -> tuple[int, int]:
    found = driver.engine.load()
    return found.num_draft_tokens, found.num_accepted_tokens


def test_right_guesses_come_in_one_step_and_wrong_ones_cost_none() -> None:
    says = [7, 8, 9, 10, 11, 12, 13, 14]
    for guesses, num_steps in (((1, *says), 3), ((1, 7, 8, 99, 99, 99, 99), 7)):
        driver = driver_of(scripted_reply(*says), knows(guesses), length=3)
        driver.ask("r", [1], max_tokens=8)
        driver.run()
        assert driver.ids("r") == says
        assert len(driver.runner.plans) == num_steps
        assert [chunk.index for chunk in driver.chunks] == sorted({chunk.index for chunk in driver.chunks})


def test_a_chunk_tells_how_many_guesses_came_true_so_far() -> None:
    driver = driver_of(scripted_reply(7, 8, 9, 10), knows((1, 7, 8, 9, 99, 99)), length=8)
    driver.ask("r", [1], max_tokens=6)
    driver.run()
    assert (driver.chunks[-1].num_accepted_drafts, driver.chunks[-1].num_rejected_drafts) == (2, 2)
    assert load(driver) == (4, 2)


def test_a_stop_token_amid_right_guesses_ends_the_answer() -> None:
    driver = driver_of(scripted_reply(7, 8, EOS, 9, 9, 9), knows((1, 7, 8, EOS, 9, 9, 9)), length=5)
    driver.ask("r", [1], max_tokens=20)
    driver.run()
    assert (driver.ids("r"), driver.reason("r")) == ([7, 8, EOS], "stop")


def test_no_guess_is_computed_behind_the_last_token_that_may_come() -> None:
    driver = driver_of(scripted_reply(7), Parrot(7), length=9)
    driver.ask("r", [1], max_tokens=4)
    driver.run()
    assert driver.ids("r") == [7] * 4
    assert [item.num_drafts for plan in driver.runner.plans for item in plan.sequences] == [0, 2]


@pytest.mark.parametrize("fields", [{"num_draft_tokens": 0}, {"deterministic": True}])
def test_a_request_can_do_without_drafts(fields: dict[str, Any]) -> None:
    driver = driver_of(scripted_reply(7), Parrot(7))
    driver.ask("r", [1], max_tokens=9, **fields)
    driver.run()
    assert load(driver) == (0, 0)


def test_a_request_can_have_fewer_drafts() -> None:
    driver = driver_of(scripted_reply(7), Parrot(7), length=9)
    driver.ask("r", [1], max_tokens=20, num_draft_tokens=2)
    driver.run()
    assert max(item.num_drafts for plan in driver.runner.plans for item in plan.sequences) == 2


def test_a_block_with_a_wrong_guess_has_no_name_until_it_is_right() -> None:
    reply = hashed_reply(256)
    plain = driver_of(reply, None)
    plain.ask("r", [1, 2, 3], max_tokens=21)
    plain.run()
    driver = driver_of(reply, Parrot(5, 6), length=7)
    driver.ask("r", [1, 2, 3], max_tokens=21)
    driver.run()
    assert driver.ids("r") == plain.ids("r")
    driver.ask("again", [1, 2, 3, *driver.ids("r")[:-1]], max_tokens=4)  # the runner checks each cell that is hit
    driver.run()
    assert driver.cached("again") == 20


def test_blocks_that_came_true_with_the_last_step_are_named() -> None:
    answer = list(range(10, 22))
    driver = driver_of(scripted_reply(*answer), knows((1, *answer)), length=12)
    driver.ask("r", [1], max_tokens=12)
    driver.run()
    assert len(driver.runner.plans) == 2
    driver.ask("again", [1, *answer], max_tokens=1)
    driver.run()
    assert driver.cached("again") == 12


def test_a_guess_takes_no_block_that_another_answer_needs() -> None:
    sizes: dict[str, Any] = {"num_blocks": 5, "block_size": 4, "max_num_seqs": 2}
    driver = driver_of(hashed_reply(256), Parrot(5), length=12, **sizes)
    for name, max_tokens in (("a", 14), ("b", 5)):
        driver.ask(name, [1, 2, 3], root=name.encode(), max_tokens=max_tokens)
    driver.run()
    assert load(driver)[0] > 10
    assert driver.engine.load().num_preemptions == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_with_steps_in_flight_a_sequence_waits_for_its_draw_only_if_there_is_something_to_guess(depth: int) -> None:
    circle = scripted_reply(*[7, 8, 9] * 20)
    driver = driver_of(circle, NgramProposer(), adaptive=True, depth=depth)
    driver.ask("r", [1], max_tokens=40)
    driver.run()
    assert driver.ids("r") == ([7, 8, 9] * 20)[:40]
    assert load(driver)[1] > 15
    assert len(driver.runner.plans) < 30
    silent = driver_of(hashed_reply(256), NgramProposer(), adaptive=True, depth=depth)
    silent.ask("r", [1], max_tokens=40)
    silent.run()
    fed = [item.from_device for plan in silent.runner.plans for item in plan.sequences]
    assert fed[1:] == [True] * (len(fed) - 1)


def test_sequences_that_draft_stay_in_step_with_one_another() -> None:
    driver = driver_of(scripted_reply(7), Parrot(7), length=3, depth=1, max_num_batched_tokens=16)
    for name in ("a", "b"):
        driver.ask(name, list(range(1, 13)), root=name.encode(), max_tokens=60)  # prompts of two steps
    driver.run()
    sizes = [len(plan.sequences) for plan in driver.runner.plans if any(item.num_drafts for item in plan.sequences)]
    assert sizes.count(1) <= 3 < sizes.count(2)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("at", range(1, 8))
def test_a_cancel_amid_guesses_leaves_nothing(at: int, depth: int) -> None:
    driver = driver_of(scripted_reply(7), Parrot(7), depth=depth)
    driver.ask("r", [1, 2, 3], max_tokens=40)
    for _ in range(at):
        driver.step()
    driver.engine.cancel("r")
    driver.run()
    assert driver.reason("r") == "cancelled" and set(driver.ids("r")) <= {7}
    assert driver.engine.load().num_free_blocks == driver.runner.info.num_blocks


def test_guesses_that_never_come_true_are_given_up_and_tried_again_when_they_would() -> None:
    says = [*range(30, 130), *[7] * 60]
    driver = driver_of(scripted_reply(*says), Parrot(7), adaptive=True)
    driver.ask("r", [1], max_tokens=160)
    driver.run()
    assert driver.ids("r") == says
    num_guesses, num_accepted = load(driver)
    assert num_guesses - num_accepted < 25
    assert num_accepted > 25


def test_the_end_of_thinking_is_forced_amid_guesses_in_the_step_in_which_the_budget_is_spent() -> None:
    plan = ReasoningPlan(budget=5, starts_open=True, close_ids=tuple(CLOSE))
    thoughts = [120] * 40
    driver = driver_of(lambda context, *_: EOS if context[-1] == CLOSE[-1] else 120, knows((1, *thoughts)), length=12)
    driver.ask("r", [1], reasoning=plan, max_tokens=30)
    driver.run()
    assert driver.ids("r") == [*[120] * 5, *CLOSE, EOS]
    answer = driver.received["r", 0].answer
    assert (answer.num_reasoning_tokens, answer.ended_by) == (5, "budget")
    # The prompt; all thoughts, of which the last needs no guess behind it; the close tag and the draw that follows.
    assert [item.num_drafts for plan in driver.runner.plans for item in plan.sequences] == [0, 3, 0]


@settings(max_examples=60, deadline=None)
@given(
    efforts=st.lists(st.sampled_from(EFFORTS), min_size=1, max_size=3),
    budget=st.none() | st.integers(0, 60),
    chunk=st.integers(1, 40),
    num_blocks=st.integers(70, 200),
    depth=st.integers(0, 1),
    length=st.integers(1, 20),
    errs=st.sampled_from([0, 2, 5]),
    closes=st.none() | st.integers(0, 30),
)
def test_thinking_stays_within_its_budget_whatever_is_guessed(
    efforts: list[str], budget: int | None, chunk: int, num_blocks: int, depth: int, length: int, errs: int,
    closes: int | None,
) -> None:  # fmt: skip
    sizes: dict[str, Any] = {
        "depth": depth,
        "max_num_batched_tokens": chunk,
        "num_blocks": num_blocks,
        "max_num_seqs": 3,
    }
    plans = [effort_plan(effort, budget, 200, starts_open=True) for effort in efforts]
    known: list[list[int]] = []
    oracle = Oracle(lambda: known, 256, errs=errs)
    for proposer in (None, oracle, Parrot(*CLOSE)):
        driver = driver_of(thinks_too_long, proposer, length, **sizes)
        for n, wanted in enumerate(plans):
            driver.ask(
                f"r{n}",
                [1, 2, 3, n],
                reasoning=wanted,
                max_tokens=200,
                closed_at={} if closes is None else {0: (closes,)},
            )
        driver.run()
        known[:] = known or [[1, 2, 3, n, *driver.ids(f"r{n}")] for n in range(len(plans))]
        for n, wanted in enumerate(plans):
            assert driver.ids(f"r{n}") == known[n][4:]
            answer = driver.received[f"r{n}", 0].answer
            assert wanted.budget is None or answer.num_reasoning_tokens <= wanted.budget


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 99),
    budget=st.none() | st.integers(0, 12),
    depth=st.integers(0, 1),
    length=st.integers(1, 12),
    errs=st.sampled_from([0, 3]),
    logprobs=st.none() | st.just(0),
    num_blocks=st.integers(40, 80),
)
def test_an_answer_by_grammar_is_valid_and_the_same_whatever_is_guessed(
    matchers: LlguidanceMatchers, seed: int, budget: int | None, depth: int, length: int, errs: int,
    logprobs: int | None, num_blocks: int,
) -> None:  # fmt: skip
    reply = hashed_reply(VOCAB_SIZE)
    plan = ReasoningPlan(budget=budget, starts_open=True, close_ids=(258,)) if budget is not None else None
    known: list[list[int]] = []
    oracle = Oracle(lambda: known, VOCAB_SIZE, errs=errs)
    for proposer in (None, oracle, Parrot(*b'{"name":"'), NgramProposer()):
        driver = driver_of(
            reply, proposer, length, matchers=matchers, token_bytes=token_bytes, depth=depth, num_blocks=num_blocks
        )
        for n in range(2):
            driver.ask(f"r{n}", [1, 2, seed, n], max_tokens=120, grammar=OBJECT, reasoning=plan, logprobs=logprobs)
        driver.run()
        known[:] = known or [[1, 2, seed, n, *driver.ids(f"r{n}")] for n in range(2)]
        for n in range(2):
            assert driver.ids(f"r{n}") == known[n][4:]
            if driver.reason(f"r{n}") == "stop":  # the hash may say spaces until the limit
                assert set(json.loads(answer_text(driver, f"r{n}"))) == {"name", "n"}
            else:
                assert driver.reason(f"r{n}") == "length"
