"""What an answer may not say: ids that are not allowed, and words of one token or of several."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from model_svc.engine.bad_words import BadWords
from tests.model_svc.engine.driver import EOS, Driver
from tests.model_svc.scripted_runner import hashed_reply, scripted_reply
from wire.errors import InvalidRequestError


def holds(ids: list[int], word: tuple[int, ...]) -> bool:
    return any(tuple(ids[at : at + len(word)]) == word for at in range(len(ids)))


@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple), max_size=4),
    depth=st.integers(0, 2),
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=4),
)
def test_an_answer_never_holds_a_bad_word(words: list[tuple[int, ...]], depth: int, prompt: list[int]) -> None:
    driver = Driver(hashed_reply(7), depth=depth, vocab_size=12)
    driver.ask("r", prompt, max_tokens=40, bad_words=words)
    driver.ask("free", prompt, max_tokens=40)
    driver.run()
    assert len(driver.ids("r")) == 40
    assert not [word for word in words if holds(driver.ids("r"), word)]


def test_a_word_that_the_prompt_began_is_no_word() -> None:
    driver = Driver(scripted_reply(2, EOS))
    driver.ask("r", [9, 1], bad_words=[(1, 2)])
    driver.run()
    assert driver.ids("r") == [2, EOS]


def test_only_the_last_token_of_a_word_is_forbidden() -> None:
    words = BadWords([(4,), (1, 2, 3), (2, 3)])
    assert words.always == (4,)
    assert words.forbidden([0, 1, 2], 1) == (3,)
    assert words.forbidden([0, 2], 1) == (3,)
    assert words.forbidden([0, 1], 1) == ()
    assert words.forbidden([0, 5, 1], 1) == ()


@pytest.mark.parametrize("depth", [0, 1])
def test_only_allowed_ids_are_drawn(depth: int) -> None:
    driver = Driver(hashed_reply(200), depth=depth)
    driver.ask("r", [1, 2], max_tokens=30, allowed_token_ids=(5, 8, 13))
    driver.run()
    assert set(driver.ids("r")) <= {5, 8, 13}
    assert len(driver.ids("r")) == 30


@pytest.mark.parametrize(
    "fields", [{"allowed_token_ids": ()}, {"allowed_token_ids": (300,)}, {"bad_words": [(1, 300)]}]
)
def test_ids_that_do_not_exist_are_refused(fields: dict[str, object]) -> None:
    driver = Driver(scripted_reply(1))
    with pytest.raises(InvalidRequestError) as caught:
        driver.ask("r", [1], **fields)  # type: ignore[arg-type]
    assert caught.value.param == next(iter(fields))
