"""More work than room: huge prompts, floods of prompts, answers that want each other's blocks, ends in every state."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from model_svc.engine.drafter import Drafter
from model_svc.engine.grammar import Matcher
from tests.model_svc.engine.driver import Driver
from tests.model_svc.engine.guessers import Parrot
from tests.model_svc.scripted_runner import hashed_reply, scripted_reply
from wire.errors import ContextLengthExceededError
from wire.messages import Grammar

BLOCK = 4
REPLY = hashed_reply(256)


def step_of_first_token(driver: Driver, name: str) -> int:
    for number in range(1, 1000):
        if any(chunk.request_id == name for chunk in driver.step()):
            return number
    raise AssertionError("no token")


@pytest.mark.parametrize("policy", ["fcfs", "fair", "prefill_first", "dynamic_chunk"])
def test_a_short_prompt_passes_a_huge_one_which_goes_on(policy: str) -> None:
    driver = Driver(REPLY, policy=policy, max_num_batched_tokens=16, num_blocks=300, max_model_len=900)
    driver.ask("huge", [1] * 800, max_tokens=1)
    driver.step()
    driver.ask("short", [2] * 7, max_tokens=1)
    assert step_of_first_token(driver, "short") == 1
    for number in range(60):  # one more in each step
        driver.ask(f"flood{number}", [number] * 9, max_tokens=1)
        driver.step()
    computed = sum(item.num_tokens for plan in driver.runner.plans for item in plan.sequences if item.slot == 0)
    assert computed >= 60 * 8
    assert step_of_first_token(driver, "huge") <= 50
    driver.run()


def test_a_prompt_that_waits_for_its_share_can_be_cancelled_before_the_runner_heard_of_it() -> None:
    driver = Driver(REPLY, max_num_batched_tokens=8)
    for name in ("first", "second"):
        driver.ask(name, [len(name)] * 20, max_tokens=2)
    driver.step()
    assert [item.num_tokens for item in driver.runner.plans[-1].sequences] == [8]
    assert driver.engine.load().num_running == 2
    driver.engine.cancel("second")
    driver.run()
    assert (driver.reason("first"), driver.reason("second")) == ("length", "cancelled")


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=20, max_size=20),
    budget=st.integers(6, 40),
    policy=st.sampled_from(["fcfs", "fair", "dynamic_chunk"]),
)
def test_under_a_flood_of_prompts_every_answer_gets_a_token_in_every_step(
    lengths: list[int], budget: int, policy: str
) -> None:
    driver = Driver(scripted_reply(7), policy=policy, max_num_batched_tokens=budget, num_blocks=400, max_num_seqs=6)
    for number in range(3):
        driver.ask(f"answer{number}", [number], max_tokens=30)
    driver.step()
    for number, length in enumerate(lengths):
        driver.ask(f"flood{number}", [number] * length, max_tokens=2)
        told = {chunk.request_id for chunk in driver.step()}
        assert {"answer0", "answer1", "answer2"} <= told
        assert sum(item.num_tokens for item in driver.runner.plans[-1].sequences) <= budget
    driver.run()


@pytest.mark.parametrize("budget", [1, 3])
def test_steps_smaller_than_the_number_of_sequences_leave_nobody_out(budget: int) -> None:
    driver = Driver(scripted_reply(7), max_num_batched_tokens=budget, max_num_seqs=8)
    for number in range(8):
        driver.ask(f"r{number}", [number] * 3, max_tokens=20)
    seen: dict[str, int] = {}
    for step in range(400):
        for chunk in driver.step():
            last = seen.get(chunk.request_id, step)
            assert step - last <= 3 * budget + 1, "an answer stood still while others went on"
            seen[chunk.request_id] = step
        if not driver.engine.has_work:
            break
        driver.engine.events()
    assert len(seen) == 8


def test_guesses_leave_tokens_for_a_prompt() -> None:
    drafter = Drafter(Parrot(7), max_length=15, max_drafts=64, adaptive=False)
    driver = Driver(scripted_reply(7), drafter=drafter, max_num_batched_tokens=16)
    driver.ask("answer", [7, 7], max_tokens=200)
    driver.step()
    driver.ask("prompt", [1] * 30, max_tokens=1)
    assert step_of_first_token(driver, "prompt") <= 5
    driver.engine.cancel("answer")
    driver.run()


def test_answers_that_do_not_fit_together_do_not_throw_one_another_out_in_turns() -> None:
    driver = Driver(REPLY, num_blocks=64, block_size=BLOCK, max_num_batched_tokens=64)
    for number in range(8):  # each grows to 31 blocks: two fit to the end
        driver.ask(f"r{number}", [number] * 4, max_tokens=120)
    driver.run()
    computed = sum(item.num_tokens for plan in driver.runner.plans for item in plan.sequences)
    known = 8 * 124
    assert driver.preemptions() == {"blocks": driver.engine.load().num_preemptions}
    assert computed < 1.5 * known
    assert driver.engine.load().num_preemptions <= 18


def test_a_prompt_that_could_never_fit_holds_nobody_up() -> None:
    driver = Driver(REPLY, num_blocks=16, block_size=BLOCK, max_model_len=4096, policy="fair")
    driver.ask("runs", [1] * 8, max_tokens=10, priority=5)
    driver.step()
    with pytest.raises(ContextLengthExceededError):
        driver.ask("never", [2] * 65, priority=-5)
    driver.received.pop(("never", 0))
    driver.ask("just", [3] * 64, max_tokens=4, priority=-5)  # the whole pool
    driver.run()
    assert (driver.reason("just"), len(driver.ids("just")), driver.reason("runs")) == ("length", 1, "length")


class _Compiles:
    """Matchers that have not been compiled yet."""

    def __init__(self) -> None:
        self.futures: list[Future[Matcher]] = []

    def start(self, grammar: Grammar, vocab_size: int) -> Future[Matcher]:  # noqa: ARG002
        self.futures.append(Future())
        return self.futures[-1]


def _waiting(driver: Driver) -> None:
    driver.ask("ahead", [5] * 4, max_tokens=9)
    driver.step()
    driver.ask("r", [1] * 20, max_tokens=9)


def _chunk_in_flight(driver: Driver) -> None:
    driver.ask("r", [1] * 20, max_tokens=9)
    driver.step()


def _step_in_flight(driver: Driver) -> None:
    driver.ask("r", [1] * 3, max_tokens=9)
    for _ in range(4):
        driver.step()


def _preempted(driver: Driver) -> None:
    driver.ask("r", [1] * 3, max_tokens=9, priority=4)
    for _ in range(3):
        driver.step()
    driver.ask("ahead", [5] * 4, max_tokens=9)
    driver.step()


def _compiling(driver: Driver) -> None:
    driver.ask("ahead", [5] * 4, max_tokens=9)
    driver.ask("r", [1] * 20, max_tokens=9, grammar=Grammar(kind="regex", source="a"))
    driver.step()


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("state", [_waiting, _chunk_in_flight, _step_in_flight, _preempted, _compiling])
def test_a_cancel_is_exact_in_every_state(state: Callable[[Driver], None], n: int, depth: int) -> None:
    driver = Driver(REPLY, policy="fair", max_num_seqs=1, max_num_batched_tokens=8, depth=depth, matchers=_Compiles())
    ask = driver.ask

    def asked(name: str, *args: Any, **kwargs: Any) -> Any:
        return ask(name, *args, **{"n": n if name == "r" else 1, **kwargs})

    driver.ask = asked  # type: ignore[method-assign, assignment]
    state(driver)
    driver.engine.cancel("r")
    driver.run()
    assert [driver.reason("r", choice) for choice in range(n)] == ["cancelled"] * n
    assert sum(chunk.finish_reason == "cancelled" for chunk in driver.chunks) == n
    assert driver.engine.load().num_free_blocks == driver.runner.info.num_blocks
    driver.ask("next", [1] * 20, max_tokens=3)
    driver.run()
    calm = Driver(REPLY)
    calm.ask("next", [1] * 20, max_tokens=3)
    calm.run()
    assert driver.ids("next") == calm.ids("next")


@pytest.mark.parametrize("depth", [0, 1])
def test_choices_of_a_wholly_cached_prompt_compute_its_last_token_each(depth: int) -> None:
    driver = Driver(REPLY, depth=depth, block_size=BLOCK)
    driver.ask("first", list(range(16)), max_tokens=1)
    driver.run()
    before = len(driver.runner.plans)
    driver.ask("again", list(range(16)), max_tokens=1, n=3, seed=5)
    driver.run()
    assert [driver.cached("again", choice) for choice in range(3)] == [12] * 3
    assert sum(item.num_tokens for plan in driver.runner.plans[before:] for item in plan.sequences) == 3 * 4
