"""One request seen from outside: choices, stops, limits, moves, odd runner outputs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from model_svc.engine.engine import Engine
from model_svc.engine.plan import StepOutput
from tests.model_svc.engine.driver import EOS, Driver
from tests.model_svc.scripted_runner import ScriptedRunner, hashed_reply, scripted_reply
from wire.messages import ReasoningPlan


def test_choices_with_one_seed_differ_and_a_repeat_gives_the_same() -> None:
    answers: list[list[list[int]]] = []
    for _ in range(2):
        driver = Driver(hashed_reply(256))
        driver.ask("r" + str(len(answers)), [1, 2, 3], n=3, seed=11, max_tokens=20)
        driver.run()
        answers.append([driver.ids("r" + str(len(answers)), choice) for choice in range(3)])
    assert answers[0] == answers[1]
    assert len({tuple(ids) for ids in answers[0]}) == 3


def test_all_choices_end_when_the_first_ends_early() -> None:
    def reply(context: Sequence[int], output_index: int, seed: int) -> int:
        return EOS if seed == first and output_index == 2 else 7

    driver = Driver(reply)
    first = 0
    driver.ask("r", [1, 2, 3], n=3, max_tokens=20)
    first = driver.engine.scheduler.roster.waiting[0].seed
    driver.run()
    assert [driver.reason("r", choice) for choice in range(3)] == ["stop", "length", "length"]
    assert [len(driver.ids("r", choice)) for choice in range(3)] == [3, 20, 20]


def test_further_choices_share_the_first_ones_prompt() -> None:
    driver = Driver(hashed_reply(256), block_size=4)
    driver.ask("r", list(range(1, 14)), n=3)
    driver.run()
    assert [driver.cached("r", choice) for choice in range(3)] == [0, 12, 12]
    prefilled = sum(item.num_tokens for plan in driver.runner.plans for item in plan.sequences if item.new is not None)
    assert prefilled == 13 + 1 + 1


def test_a_cancelled_first_choice_does_not_strand_the_others() -> None:
    driver = Driver(hashed_reply(256), max_num_batched_tokens=4)
    driver.ask("r", list(range(1, 14)), n=3)
    driver.step()
    driver.engine.cancel("r", 0)
    driver.run()
    assert [driver.reason("r", choice) for choice in range(3)] == ["cancelled", "length", "length"]


def test_one_choice_can_be_cancelled_alone() -> None:
    driver = Driver(scripted_reply(7))
    driver.ask("r", [1, 2, 3], n=2, max_tokens=20)
    for _ in range(4):
        driver.step()
    driver.engine.cancel("r", 1)
    driver.run()
    assert [driver.reason("r", choice) for choice in range(2)] == ["length", "cancelled"]


def test_min_tokens_holds_back_every_stop() -> None:
    driver = Driver(scripted_reply(EOS))
    driver.ask("r", [1], min_tokens=3, max_tokens=10)
    driver.run()
    assert len(driver.ids("r")) == 4
    assert driver.ids("r")[-1] == EOS


class _Unmasked(ScriptedRunner):
    """Draws stop ids although min_tokens forbids them."""

    def _is_barred(self, *_: object) -> bool:
        return False


def test_a_stop_id_drawn_before_min_tokens_is_an_ordinary_token() -> None:
    runner = _Unmasked(scripted_reply(EOS))
    engine = Engine(runner, token_bytes=lambda _: b"", eos_token_ids=(EOS,))
    engine.add(Driver(scripted_reply(7)).ask("r", [1], min_tokens=2, max_tokens=10))
    chunks = [chunk for _ in range(5) for chunk in engine.step()]
    assert [token for chunk in chunks for token in chunk.token_ids] == [EOS] * 3
    assert chunks[-1].finish_reason == "stop"


def test_ignore_eos_ignores_the_models_end_but_not_the_clients() -> None:
    driver = Driver(scripted_reply(EOS, EOS, 9, 7))
    driver.ask("r", [1], ignore_eos=True, stop_token_ids=(9,), max_tokens=10)
    driver.run()
    assert driver.ids("r") == [EOS, EOS, 9]
    assert driver.reason("r") == "stop"


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_max_tokens_is_exact(max_tokens: int) -> None:
    driver = Driver(scripted_reply(7))
    driver.ask("r", [1, 2], max_tokens=max_tokens)
    driver.run()
    assert (driver.ids("r"), driver.reason("r")) == ([7] * max_tokens, "length")


def test_a_prompt_one_short_of_the_context_gives_one_token() -> None:
    driver = Driver(scripted_reply(7), max_model_len=16)
    driver.ask("r", [1] * 15, max_tokens=99)
    driver.run()
    assert (driver.ids("r"), driver.reason("r")) == ([7], "length")


class _ManyTokens(ScriptedRunner):
    """Hands over each step's token four times, as accepted drafts will come."""

    def collect(self, handle: int) -> StepOutput:
        output = super().collect(handle)
        many = tuple(token for token in output.tokens for _ in range(4))
        return StepOutput(step=output.step, tokens=many)


@pytest.mark.parametrize(("stop", "expected"), [((), [7] * 3), ((7,), [7])])
def test_tokens_behind_the_end_are_dropped_when_many_come_at_once(stop: tuple[int, ...], expected: list[int]) -> None:
    engine = Engine(_ManyTokens(scripted_reply(7)), token_bytes=lambda _: b"x")
    driver = Driver(scripted_reply(7))
    request = driver.ask("r", [1, 2], max_tokens=len(expected), stop_token_ids=stop, logprobs=1)
    engine.add(request)
    chunks = engine.step()
    assert [token for chunk in chunks for token in chunk.token_ids] == expected
    assert all(len(chunk.token_ids) == len(chunk.logprobs) for chunk in chunks)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_slot_whose_logits_are_not_finite_fails_alone(depth: int) -> None:
    def reply(context: Sequence[int], output_index: int, seed: int) -> int | None:
        return None if context[0] == 66 and output_index == 2 else 7

    driver = Driver(reply, depth=depth)
    driver.ask("bad", [66, 2], max_tokens=9)
    driver.ask("good", [1, 2], max_tokens=9)
    driver.run()
    assert (driver.reason("bad"), driver.ids("bad")) == ("error", [7, 7])
    assert (driver.reason("good"), driver.ids("good")) == ("length", [7] * 9)


@pytest.mark.parametrize("kept", range(9))
def test_a_move_continues_the_answer_with_its_index(kept: int) -> None:
    whole = Driver(hashed_reply(256))
    whole.ask("r", [1, 2, 3], seed=3)
    whole.run()
    moved = Driver(hashed_reply(256))
    moved.ask("r", [1, 2, 3], seed=3, attempt=1, checkpoint={0: whole.ids("r")[:kept]})
    moved.run()
    assert moved.ids("r") == whole.ids("r")
    assert moved.chunks[0].index == kept
    assert {chunk.attempt for chunk in moved.chunks} == {1}


def test_a_move_of_what_had_already_ended_only_says_so() -> None:
    driver = Driver(scripted_reply(7))
    driver.ask("stopped", [1], attempt=1, checkpoint={0: [7, EOS]})
    driver.ask("full", [1], attempt=1, max_tokens=2, checkpoint={0: [7, 7]})
    driver.run()
    assert [(c.request_id, c.finish_reason, c.token_ids, c.stop_token) for c in driver.chunks] == [
        ("stopped", "stop", (), True),
        ("full", "length", (), False),
    ]
    assert not driver.runner.plans


def test_a_later_attempt_replaces_the_earlier_and_a_repeat_is_ignored() -> None:
    driver = Driver(scripted_reply(7))
    first = driver.ask("r", [1, 2], max_tokens=20)
    driver.step()
    driver.engine.add(first)
    driver.step()
    assert driver.engine.load().num_running == 1
    driver.ask("r", [1, 2], max_tokens=20, attempt=1)
    while driver.engine.has_work:
        assert {chunk.attempt for chunk in driver.step()} <= {1}
        driver.engine.events()
    assert driver.engine.load().num_free_blocks == 64


def test_first_and_last_chunk_carry_the_times() -> None:
    driver = Driver(scripted_reply(7), max_num_batched_tokens=4, max_num_seqs=1)
    driver.ask("before", [1], max_tokens=2)
    driver.ask("r", list(range(8)), max_tokens=3)
    driver.run()
    chunks = [chunk for chunk in driver.chunks if chunk.request_id == "r"]
    assert chunks[0].timings_ms == {"queue": 3000.0, "prefill": 1000.0, "decode": 0.0}
    assert chunks[1].timings_ms == {}
    assert chunks[2].timings_ms == {"queue": 3000.0, "prefill": 1000.0, "decode": 2000.0}


def test_the_runner_is_told_how_to_set_up_a_slot_only_when_it_must() -> None:
    driver = Driver(scripted_reply(7), block_size=4)
    driver.ask("r", [1, 2, 3], max_tokens=8, temperature=0.5)
    driver.run()
    items = [item for plan in driver.runner.plans for item in plan.sequences]
    assert [item.new is not None for item in items] == [True] + [False] * 7
    assert [len(item.new_blocks) for item in items] == [1, 0, 1, 0, 0, 0, 1, 0]
    new = items[0].new
    assert new is not None and new.sampling.temperature == 0.5 and new.stop_token_ids == (EOS,)


def test_a_later_attempt_of_a_request_that_ended_as_it_came_is_told_once() -> None:
    driver = Driver(scripted_reply(1))
    plan = ReasoningPlan(budget=0, starts_open=True, close_ids=(3,))
    for attempt in (0, 1):
        driver.ask("r", [1], reasoning=plan, max_tokens=1, attempt=attempt)
    driver.run()
    assert [chunk.attempt for chunk in driver.chunks] == [1]
