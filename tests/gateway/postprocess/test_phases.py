"""Reasoning and answer come apart as the engine marked them, wherever tokens are cut."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.postprocess.phases import segments
from tests.gateway.postprocess.scripted import Pieces, Run, cut, run
from wire.messages import ANSWER, MARKUP, REASONING, PhaseMark

OPEN, CLOSE = (MARKUP, b"<think>"), (MARKUP, b"</think>")
THOUGHT: list[Run] = [OPEN, (REASONING, b"ab"), CLOSE, (ANSWER, b"cd")]


@pytest.mark.parametrize("opened_in_prompt", [False, True])
def test_every_cut_into_up_to_three_chunks_gives_the_same_fields(opened_in_prompt: bool) -> None:
    runs = THOUGHT[1:] if opened_in_prompt else THOUGHT
    total = sum(len(raw) for _, raw in runs)
    for count in (0, 1, 2):
        for cuts in combinations(range(1, total), count):
            for per_chunk in (1, 2, 3):
                outcome = run(cut(runs, cuts), per_chunk=per_chunk)
                assert (outcome.reasoning, outcome.answer) == ("ab", "cd"), cuts


def test_two_think_blocks_give_joined_reasoning_and_joined_answer() -> None:
    runs: list[Run] = [*THOUGHT, OPEN, (REASONING, b"ef"), CLOSE, (ANSWER, b"gh")]
    for at in range(1, sum(len(raw) for _, raw in runs)):
        outcome = run(cut(runs, [at]))
        assert (outcome.reasoning, outcome.answer) == ("abef", "cdgh")


def test_newlines_next_to_a_think_tag_belong_to_the_tag() -> None:
    runs: list[Run] = [OPEN, (REASONING, b"\n\na\n\nb\n"), CLOSE, (ANSWER, b"\n\n  c\n\nd\n")]
    for cuts in ((), range(100)):
        outcome = run(cut(runs, list(cuts)))
        assert (outcome.reasoning, outcome.answer) == ("a\n\nb", "  c\n\nd\n")


def test_newlines_at_the_end_of_reasoning_that_was_cut_off_are_reasoning() -> None:
    outcome = run(cut([(REASONING, b"a\n\n")], [1]))
    assert (outcome.reasoning, outcome.answer) == ("a\n\n", "")


def test_reasoning_cut_by_max_tokens_is_not_the_answer() -> None:
    outcome = run(cut([OPEN, (REASONING, b"still thinking")], range(100)), finish="length")
    assert (outcome.reasoning, outcome.answer, outcome.finish_reason) == ("still thinking", "", "length")


def test_thinking_that_ends_without_its_close_tag_stays_reasoning() -> None:
    outcome = run(cut([OPEN, (REASONING, b"hm")], [3]), finish="stop")
    assert (outcome.reasoning, outcome.answer, outcome.finish_reason) == ("hm", "", "stop")


def test_empty_thinking_leaves_no_stray_tag() -> None:
    for cuts in ((), range(100)):
        outcome = run(cut([OPEN, CLOSE, (ANSWER, b"hi")], list(cuts)))
        assert (outcome.reasoning, outcome.answer) == ("", "hi")


def test_text_before_thinking_keeps_its_newlines() -> None:
    assert run(cut([(ANSWER, b"\nx\n"), *THOUGHT], [])).answer == "\nx\ncd"


def test_reasoning_is_counted_but_not_shown_when_the_client_does_not_want_it() -> None:
    outcome = run(cut(THOUGHT, range(100)), include_reasoning=False)
    assert (outcome.reasoning, outcome.answer, outcome.num_reasoning_tokens) == ("", "cd", 2)


def test_a_token_that_holds_any_thinking_counts_as_reasoning() -> None:
    tokens: list[list[Run]] = [
        [OPEN],
        [(REASONING, b"a")],
        [(REASONING, b"b"), CLOSE, (ANSWER, b"c")],
        [(ANSWER, b"d")],
    ]
    assert run(tokens).num_reasoning_tokens == 2


def test_a_character_never_goes_on_behind_a_tag() -> None:
    runs: list[Run] = [(REASONING, b"a\xf0\x9f"), CLOSE, (ANSWER, b"\x98\x80b")]
    outcome = run(cut(runs, range(100)))
    assert (outcome.reasoning, outcome.answer) == ("a�", "��b")


def test_marks_past_the_bytes_of_a_special_token_do_no_harm() -> None:
    assert segments(b"", MARKUP, [PhaseMark(0, 7, REASONING)]) == [(MARKUP, b""), (REASONING, b"")]
    assert segments(b"xy", ANSWER, [PhaseMark(0, 0, REASONING)]) == [(REASONING, b"xy")]


def test_one_leading_space_is_dropped_for_a_vocabulary_that_adds_one() -> None:
    def first(text: bytes, **options: Any) -> str:
        return run(cut([(ANSWER, text)], [1, 2]), vocabulary=Pieces(strips_first_space=True), **options).answer

    assert first(b" red blue") == "red blue"
    assert first(b"    indented") == "   indented"
    assert first(b" red", continues=True) == " red"


@given(
    st.lists(st.tuples(st.sampled_from([ANSWER, REASONING, MARKUP]), st.binary(max_size=6)), max_size=6),
    st.lists(st.integers(0, 40), max_size=10),
    st.integers(1, 4),
)
def test_any_split_of_any_bytes_in_any_phases_gives_the_same_text(
    runs: list[Run], cuts: list[int], per_chunk: int
) -> None:
    whole = run(cut(runs, []))
    split = run(cut(runs, cuts), per_chunk=per_chunk)
    assert (split.reasoning, split.answer) == (whole.reasoning, whole.answer)
