"""What the engine refuses by itself, whatever the edge let through; the engine goes on after each."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gateway.balancer.policy import fits
from model_svc.engine.request import EngineRequest
from tests.model_svc.engine.driver import Driver
from tests.model_svc.scripted_runner import scripted_reply
from wire.errors import ContextLengthExceededError, InvalidRequestError
from wire.messages import Prompt, ReasoningPlan, pack_ids

VOCAB = 300


@pytest.mark.parametrize(
    ("param", "sampling"),
    [
        ("temperature", {"temperature": math.nan}),
        ("temperature", {"temperature": math.inf}),
        ("temperature", {"temperature": -0.1}),
        ("top_p", {"top_p": 1.5}),
        ("min_p", {"min_p": -1.0}),
        ("presence_penalty", {"presence_penalty": math.nan}),
        ("frequency_penalty", {"frequency_penalty": math.inf}),
        ("repetition_penalty", {"repetition_penalty": 0.0}),
        ("logit_bias", {"logit_bias": {99_999_999: 5.0}}),
        ("logit_bias", {"logit_bias": {-1: 5.0}}),
        ("logit_bias", {"logit_bias": {1: math.nan}}),
        ("stop_token_ids", {"stop_token_ids": (VOCAB,), "min_tokens": 2}),
        ("min_tokens", {"min_tokens": -1}),
        ("top_k", {"top_k": -2}),
        ("logprobs", {"logprobs": VOCAB + 1}),
        ("n", {"n": 0}),
        ("max_tokens", {"max_tokens": 0}),
        ("prompt", {"prompt_ids": []}),
        ("prompt", {"prompt_ids": [1, VOCAB]}),
        ("prompt", {"prompt_ids": [-1]}),
        ("reasoning", {"reasoning": ReasoningPlan(close_ids=(VOCAB,))}),
        ("checkpoint", {"checkpoint": {0: [VOCAB]}}),
        ("bad_words", {"allowed_token_ids": (7, 8), "bad_words": ((7,), (8,), (9, 8))}),
        ("min_tokens", {"allowed_token_ids": (7, 8), "stop_token_ids": (7, 8, 9), "min_tokens": 1}),
        ("min_tokens", {"stop_token_ids": tuple(range(VOCAB)), "min_tokens": 1}),
    ],
)
def test_a_request_that_could_break_the_step_is_refused_by_name(param: str, sampling: dict[str, Any]) -> None:
    driver = Driver(scripted_reply(7), vocab_size=VOCAB)
    prompt_ids = sampling.pop("prompt_ids", [1, 2])
    with pytest.raises(InvalidRequestError) as caught:
        driver.ask("bad", prompt_ids, **sampling)
    assert caught.value.param == param
    driver.received.clear()
    driver.ask("good", [1, 2], max_tokens=2)
    driver.run()
    assert driver.reason("good") == "length"
    assert driver.engine.load().num_free_blocks == 64


@pytest.mark.parametrize(
    ("param", "packed"),
    [
        ("prompt", {"token_ids": b"12345"}),
        ("prediction", {"prediction_ids": b"1"}),
        ("prediction", {"prediction_ids": pack_ids([VOCAB])}),
    ],
)
def test_bytes_that_are_no_ids_of_the_model_are_refused_by_name(param: str, packed: dict[str, Any]) -> None:
    driver = Driver(scripted_reply(7), vocab_size=VOCAB)
    prompt = Prompt(**{"token_ids": pack_ids([1, 2]), "num_tokens": 2, **packed})
    with pytest.raises(InvalidRequestError) as caught:
        driver.engine.add(EngineRequest(request_id="bad", prompt=prompt))
    assert caught.value.param == param


@pytest.mark.parametrize("sampling", [{"top_k": 2**31}, {"top_k": -1}, {"top_k": 0}, {"temperature": 0.0}])
def test_extreme_but_meaningful_values_pass(sampling: dict[str, Any]) -> None:
    driver = Driver(scripted_reply(7))
    driver.ask("r", [1], max_tokens=1, **sampling)
    driver.run()
    assert driver.reason("r") == "length"


@pytest.mark.parametrize("length", [16, 17])
def test_a_prompt_at_or_over_the_context_is_refused_with_both_counts(length: int) -> None:
    driver = Driver(scripted_reply(7), max_model_len=16)
    with pytest.raises(ContextLengthExceededError, match=rf"{length} tokens.*context holds 16"):
        driver.ask("r", [1] * length)


def test_a_pool_smaller_than_the_context_says_that_it_is_the_cache() -> None:
    driver = Driver(scripted_reply(7), num_blocks=2, block_size=4, max_model_len=100)
    with pytest.raises(ContextLengthExceededError, match="KV cache holds 8"):
        driver.ask("r", [1] * 9)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_prompt_that_fills_the_pool_gets_its_one_token_as_the_balancer_counts(depth: int) -> None:
    sizes: dict[str, Any] = {"num_blocks": 2, "block_size": 4}
    assert fits(8, max_model_len=100, **sizes) and not fits(9, max_model_len=100, **sizes)
    driver = Driver(scripted_reply(7), max_model_len=100, depth=depth, **sizes)
    driver.ask("full", [1] * 8)
    driver.ask("less", [2] * 5)
    driver.run()
    assert [len(driver.ids(name)) for name in ("full", "less")] == [1, 4]
    assert driver.engine.load().num_free_blocks == 2
