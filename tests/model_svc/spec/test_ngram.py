"""Prompt lookup: what followed before follows again, as far as anybody can tell."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from model_svc.spec.ngram import NgramProposer


def guess(*token_ids: int, limit: int = 4, prediction: tuple[int, ...] = ()) -> list[int]:
    return NgramProposer().start(prediction).guess(token_ids, limit).token_ids


def test_what_followed_the_last_tokens_before_is_guessed() -> None:
    assert guess(1, 2, 3, 4, 5, 9, 1, 2) == [3, 4, 5, 9]
    assert guess(1, 2, 3, 4, 5, 9, 1, 2, limit=2) == [3, 4]
    assert guess(1, 2, 3, 4, 5) == []
    assert guess() == guess(7) == []


def test_the_longer_match_wins_and_then_the_newer_one() -> None:
    assert guess(1, 2, 3, 4, 50, 7, 3, 4, 60, 8, 1, 2, 3, 4, limit=1) == [50]
    assert guess(3, 4, 50, 7, 3, 4, 60, 8, 3, 4, limit=1) == [60]


def test_a_guess_tells_how_many_tokens_match() -> None:
    matched = [
        NgramProposer().start().guess([9, *range(10, 10 + n), 1, *range(10, 10 + n)], 2).matched for n in (2, 4, 7)
    ]
    assert matched == [2, 4, 7]
    assert NgramProposer().start().guess([*range(20), *range(20)], 2).matched == 8
    assert NgramProposer().start((1, 2)).guess([7], 2).matched == 0


def test_a_circle_goes_on() -> None:
    assert guess(1, 2, 1, 2, limit=5) == [1, 2, 1, 2, 1]
    assert guess(5, 5, 5, limit=3) == [5, 5, 5]


def test_a_prediction_is_said_from_its_start_and_found_again_where_the_answer_left_it() -> None:
    guesser = NgramProposer().start((10, 11, 12, 13, 14))
    assert guesser.guess([1, 2], 3).token_ids == [10, 11, 12]
    assert guesser.guess([1, 2, 10, 99], 3).token_ids == []
    assert guesser.guess([1, 2, 10, 99, 11, 12], 3).token_ids == [13, 14]  # and nothing beyond its end


def test_a_long_prompt_is_learned_bit_by_bit() -> None:
    prompt = [*range(5000), 4500, 4501]
    guesser = NgramProposer().start()
    assert guesser.guess(prompt, 2).token_ids == guesser.guess(prompt, 2).token_ids == []
    assert guesser.guess(prompt, 2).token_ids == [4502, 4503]


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 8), st.lists(st.integers(0, 3), max_size=6))
def test_any_growth_gives_what_a_fresh_guesser_gives(ids: list[int], limit: int, prediction: list[int]) -> None:
    growing = NgramProposer().start(prediction)
    growing.guess([], limit)
    for end in range(len(ids) + 1):
        fresh = NgramProposer().start(prediction)
        fresh.guess([], limit)
        found = growing.guess(ids[:end], limit)
        assert found == fresh.guess(ids[:end], limit) or not end
        assert len(found.token_ids) <= limit and all(token in (*ids[:end], *prediction) for token in found.token_ids)
