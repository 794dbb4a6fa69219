"""A prompt's own log-probabilities: each token once, whatever the chunks, hits, preemptions and moves."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from tests.model_svc.engine.driver import EOS, Driver
from tests.model_svc.scripted_runner import hashed_reply, scripted_reply
from wire.messages import TokenLogprob

PROMPT = [(7 * n + 3) % 250 for n in range(40)]


def expected(prompt: list[int], num_top: int) -> tuple[TokenLogprob, ...]:
    """What the scripted runner says of position n and the id behind it."""
    top = (tuple(range(num_top)), (0.0,) * num_top)
    return tuple(TokenLogprob(-n - token / 1000, *top) for n, token in enumerate(prompt[1:]))


def told(driver: Driver, request_id: str) -> list[tuple[int, int, tuple[TokenLogprob, ...]]]:
    found = [(c.choice, c.index, c.prompt_logprobs) for c in driver.chunks if c.request_id == request_id]
    return [(choice, index, entries) for choice, index, entries in found if entries]


@settings(max_examples=60, deadline=None)
@given(
    chunk=st.integers(1, 50),
    depth=st.integers(0, 2),
    length=st.integers(2, 40),
    n=st.integers(1, 3),
    num_top=st.integers(0, 3),
    num_blocks=st.integers(24, 64),
)
def test_each_token_is_told_once_with_the_first_chunk_of_the_first_choice(
    chunk: int, depth: int, length: int, n: int, num_top: int, num_blocks: int
) -> None:
    driver = Driver(hashed_reply(250), depth=depth, max_num_batched_tokens=chunk, num_blocks=num_blocks)
    driver.ask("before", PROMPT[:length], max_tokens=4)  # leaves its blocks in the cache
    driver.run()
    driver.ask("other", PROMPT[::-1], max_tokens=30)
    driver.ask("r", PROMPT[:length], max_tokens=12, n=n, prompt_logprobs=num_top)
    driver.run()
    assert told(driver, "r") == [(0, 0, expected(PROMPT[:length], num_top))]
    assert driver.cached("r") == 0
    assert not told(driver, "before")


def test_the_blocks_of_such_a_prompt_can_be_hit_by_others() -> None:
    driver = Driver(scripted_reply(5, EOS))
    driver.ask("first", PROMPT, prompt_logprobs=0)
    driver.run()
    driver.ask("second", PROMPT)
    driver.run()
    assert driver.cached("second") == 36


def test_a_preempted_prompt_is_told_whole() -> None:
    driver = Driver(scripted_reply(*[5] * 60, EOS), num_blocks=14, max_num_batched_tokens=8)
    driver.ask("long", [1, 2, 3, 4], max_tokens=50)
    for _ in range(6):
        driver.step()
    driver.ask("r", PROMPT[:30], max_tokens=20, prompt_logprobs=1)
    driver.run()
    assert driver.engine.load().num_preemptions
    assert told(driver, "r") == [(0, 0, expected(PROMPT[:30], 1))]


def test_a_prompt_of_one_token_has_none() -> None:
    driver = Driver(scripted_reply(5, EOS))
    driver.ask("r", [9], prompt_logprobs=2)
    driver.run()
    assert not told(driver, "r")
    assert driver.reason("r") == "stop"
