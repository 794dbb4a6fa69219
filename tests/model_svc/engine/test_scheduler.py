"""Scheduling: nobody waits for ever, budgets hold, policies do what their names say."""

from __future__ import annotations

import random
from typing import Any

import pytest

from model_svc.engine.plan import StepPlan
from model_svc.engine.policy import POLICIES
from tests.model_svc.engine.driver import EOS, Driver
from tests.model_svc.scripted_runner import hashed_reply, scripted_reply
from wire.errors import ContextLengthExceededError

BLOCK = 4


def alone(prompt: list[int], **asked: Any) -> list[int]:
    driver = Driver(hashed_reply(256), num_blocks=200, max_num_batched_tokens=10_000, max_model_len=800)
    driver.ask("alone", prompt, **asked)
    driver.run()
    return driver.ids("alone")


def test_a_request_that_can_never_fit_is_refused_and_those_behind_it_run() -> None:
    driver = Driver(hashed_reply(256), num_blocks=64, block_size=BLOCK, max_model_len=1024)
    with pytest.raises(ContextLengthExceededError, match="320 tokens"):
        driver.ask("huge", [1] * 80 * BLOCK)
    for number in range(5):
        driver.ask(f"r{number}", [number, 2, 3])
    driver.received.pop(("huge", 0))
    driver.run()
    assert all(driver.reason(f"r{number}") == "length" for number in range(5))


def test_a_request_that_outgrows_the_pool_ends_with_length() -> None:
    driver = Driver(hashed_reply(256), num_blocks=64, block_size=BLOCK, max_model_len=1024)
    driver.ask("grows", [1] * 60 * BLOCK, max_tokens=20 * BLOCK)
    driver.run()
    assert driver.reason("grows") == "length"
    assert len(driver.ids("grows")) == 4 * BLOCK + 1  # nobody computes the last one, so it needs no place


@pytest.mark.parametrize("depth", [0, 1])
def test_two_that_do_not_fit_together_finish_one_after_the_other(depth: int) -> None:
    driver = Driver(hashed_reply(256), num_blocks=10, block_size=BLOCK, depth=depth)
    shared = list(range(1, 17))
    driver.ask("warm", shared, max_tokens=1)
    driver.run()
    for request_id in ("one", "two"):
        driver.ask(request_id, [*shared, len(request_id)], max_tokens=8, seed=4)
    driver.run()
    for request_id in ("one", "two"):
        assert driver.ids(request_id) == alone([*shared, len(request_id)], max_tokens=8, seed=4)


@pytest.mark.parametrize("depth", [0, 1])
def test_many_long_answers_in_a_small_pool_all_finish_right(depth: int) -> None:
    driver = Driver(hashed_reply(256), num_blocks=12, block_size=BLOCK, depth=depth)
    for number in range(8):
        driver.ask(f"r{number}", [number, 1, 2], max_tokens=30, seed=number)
    driver.run()
    assert driver.engine.load().num_preemptions > 0
    for number in range(8):
        assert driver.ids(f"r{number}") == alone([number, 1, 2], max_tokens=30, seed=number)


def test_the_latest_is_preempted_never_the_first() -> None:
    driver = Driver(hashed_reply(256), num_blocks=8, block_size=BLOCK)
    for number in range(3):
        driver.ask(f"r{number}", [number, 1, 2], max_tokens=24)
    order = []
    while driver.engine.has_work:
        order += [chunk.request_id for chunk in driver.step() if chunk.finish_reason]
        driver.engine.events()
    assert order == ["r0", "r1", "r2"]


def test_preemption_does_not_come_back_at_once() -> None:
    driver = Driver(hashed_reply(256), num_blocks=10, block_size=BLOCK)
    for number in range(4):
        driver.ask(f"r{number}", [number] * 6, max_tokens=28)
    driver.run()
    assert driver.engine.load().num_preemptions <= 6


def test_a_newcomer_is_not_admitted_only_to_be_preempted() -> None:
    driver = Driver(hashed_reply(256), num_blocks=5, block_size=BLOCK)
    driver.ask("runs", [1, 2, 3, 4], max_tokens=12)
    driver.step()
    driver.ask("comes", list(range(12)), max_tokens=6)  # fits now, but not beside the next block of the first
    driver.run()
    assert driver.engine.load().num_preemptions == 0


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("length", [15, 16, 17, 32, 33])
def test_chunked_prefill_gives_what_whole_prefill_gives(length: int, depth: int) -> None:
    prompt = list(range(1, length + 1))
    driver = Driver(hashed_reply(256), max_num_batched_tokens=16, depth=depth)
    driver.ask("r", prompt, max_tokens=1, logprobs=1, seed=2)
    driver.run()
    (chunk,) = driver.chunks  # nothing goes out before the first real token
    assert list(chunk.token_ids) == alone(prompt, max_tokens=1, seed=2)
    assert chunk.logprobs[0].logprob == -chunk.token_ids[0] / 100
    assert chunk.num_prompt_tokens == length


def widths(plan: StepPlan) -> list[int]:
    return [item.num_tokens for item in plan.sequences]


def test_a_running_answer_gets_its_token_beside_a_long_prompt() -> None:
    driver = Driver(hashed_reply(256), max_num_batched_tokens=8)
    driver.ask("runs", [1, 2, 3], max_tokens=20)
    driver.step()
    driver.ask("long", list(range(40)), max_tokens=2)
    driver.step()
    assert widths(driver.runner.plans[-1]) == [1, 7]
    driver.run()


def test_a_cancelled_prompt_stops_at_the_next_chunk() -> None:
    driver = Driver(hashed_reply(256), max_num_batched_tokens=8)
    driver.ask("long", list(range(200)))
    driver.ask("behind", [1, 2, 3], max_tokens=1)
    driver.step()
    driver.engine.cancel("long")
    driver.step()
    assert driver.reason("long") == "cancelled"
    assert driver.reason("behind") == "length"
    assert driver.engine.load().num_free_blocks == 64


@pytest.mark.parametrize("depth", [0, 1])
def test_a_cancel_gives_blocks_and_slot_back_and_sends_one_last_chunk(depth: int) -> None:
    driver = Driver(scripted_reply(7), depth=depth)
    driver.ask("r", [1, 2, 3], max_tokens=100)
    for _ in range(4):
        driver.step()
    driver.engine.cancel("r")
    driver.engine.cancel("r")  # late cancels are harmless
    driver.run()
    driver.engine.cancel("r")
    assert [chunk.finish_reason for chunk in driver.chunks].count("cancelled") == 1
    assert driver.engine.load().num_free_blocks == 64
    driver.ask("next", [1], max_tokens=1)
    driver.run()


def test_priority_goes_before_arrival() -> None:
    driver = Driver(hashed_reply(256), policy="priority", max_num_seqs=1)
    for request_id, priority in (("low", 5), ("high", 1), ("low2", 5)):
        driver.ask(request_id, [1, 2], max_tokens=2, priority=priority)
    order = []
    while driver.engine.has_work:
        order += [chunk.request_id for chunk in driver.step() if chunk.finish_reason]
        driver.engine.events()
    assert order == ["high", "low", "low2"]


def test_prefill_first_lets_prompts_fill_the_step() -> None:
    driver = Driver(hashed_reply(256), policy="prefill_first", max_num_batched_tokens=8)
    driver.ask("runs", [1, 2, 3], max_tokens=20)
    driver.step()
    driver.ask("long", list(range(16)), max_tokens=2)
    driver.step()
    assert widths(driver.runner.plans[-1]) == [8]
    driver.step()
    assert widths(driver.runner.plans[-1]) == [8]
    driver.step()
    assert widths(driver.runner.plans[-1]) == [1, 1]
    driver.run()


def test_dynamic_chunk_keeps_the_step_under_the_objective() -> None:
    driver = Driver(hashed_reply(256), policy="dynamic_chunk", inter_token_ms=20.0, max_num_batched_tokens=64,
                    num_blocks=200, max_model_len=800)  # fmt: skip
    driver.ask("runs", [1, 2, 3], max_tokens=60)
    for _ in range(3):
        driver.step()
    costs = driver.engine.scheduler.costs
    costs.decode_step_ms, costs.prefill_token_ms = 4.0, 0.8
    driver.ask("long", list(range(200)), max_tokens=2)
    driver.step()
    assert widths(driver.runner.plans[-1]) == [1, 20]  # (20 - 4) / 0.8
    driver.run()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_no_policy_changes_an_answer(policy: str) -> None:
    driver = Driver(hashed_reply(256), policy=policy, inter_token_ms=1.0, num_blocks=20, max_num_batched_tokens=16)
    for number in range(6):
        driver.ask(f"r{number}", list(range(number, 20)), seed=number)
    driver.run()
    for number in range(6):
        assert driver.ids(f"r{number}") == alone(list(range(number, 20)), seed=number)


def test_more_requests_than_slots_wait_in_order() -> None:
    driver = Driver(scripted_reply(7), max_num_seqs=2)
    for number in range(5):
        driver.ask(f"r{number}", [1, number], max_tokens=3)
    driver.step()
    load = driver.engine.load()
    assert (load.num_running, load.num_waiting, load.num_waiting_tokens) == (2, 3, 6)
    driver.run()
    assert all(driver.reason(f"r{number}") == "length" for number in range(5))


def test_waste_is_the_room_that_holds_no_token() -> None:
    driver = Driver(scripted_reply(7), block_size=16)
    driver.ask("r", list(range(20)), max_tokens=50)
    driver.step()
    assert driver.engine.load().waste == pytest.approx((32 - 21) / 32)


def test_answers_of_usual_lengths_waste_less_than_4_percent() -> None:
    """The mixed requests of loadtest.engine (64 to 1,024 in, 32 to 512 out), a quarter of them, blocks of 16."""
    sizes: dict[str, Any] = {"block_size": 16, "num_blocks": 4000, "max_num_seqs": 64, "max_num_batched_tokens": 8192}
    driver = Driver(scripted_reply(7), max_model_len=2048, **sizes)
    draw = random.Random(7)
    for number in range(64):
        prompt = [number, *(draw.randrange(200) for _ in range(draw.randint(63, 1023)))]
        driver.ask(f"r{number}", prompt, max_tokens=draw.randint(32, 512), ignore_eos=True)
    seen = []
    while driver.engine.has_work:
        driver.engine.step()
        driver.engine.events()
        load = driver.engine.load()
        if load.num_running > 8:
            seen.append(load.waste)
    assert len(seen) > 300
    assert max(seen) < 0.04
    assert sum(seen) / len(seen) < 0.015


def test_a_stop_seen_one_step_late_discards_the_token_in_flight() -> None:
    driver = Driver(scripted_reply(7, EOS, 9), depth=1)
    driver.ask("r", [1, 2], max_tokens=20)
    driver.run()
    assert driver.ids("r") == [7, EOS]
    assert driver.chunks[-1].stop_token
    assert len(driver.runner.plans) == 3  # the third was in flight when the end came


def test_the_last_allowed_token_is_not_followed_by_a_useless_step() -> None:
    driver = Driver(scripted_reply(7), depth=1)
    driver.ask("r", [1, 2], max_tokens=3)
    driver.run()
    assert len(driver.runner.plans) == 3
