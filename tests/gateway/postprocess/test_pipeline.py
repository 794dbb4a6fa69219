"""The pipeline gives a client the same text in every split, and ends everything at the same point."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.postprocess.pipeline import Pipeline
from gateway.postprocess.safety.policy import SafetyPolicy
from tests.gateway.postprocess.scripted import Pieces, Run, answer, chunk, cut, run
from wire.messages import ANSWER, MARKUP, REASONING, TokenChunk, TokenLogprob

BLOCK = SafetyPolicy.parse('[[rule]]\nid = "z"\nkind = "terms"\nterms = ["zorgblat"]\naction = "block"\n')
REDACT = SafetyPolicy.parse('[[rule]]\nid = "z"\nkind = "terms"\nterms = ["zorgblat"]\naction = "redact"\n')


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=12), st.integers(1, 5))
def test_any_split_of_any_bytes_gives_the_text_of_decoding_at_once(raw: bytes, cuts: list[int], per_chunk: int) -> None:
    assert run(cut([(ANSWER, raw)], cuts), per_chunk=per_chunk).answer == raw.decode("utf-8", "replace")


def test_a_byte_that_is_never_utf8_becomes_a_replacement_character_and_the_rest_is_kept() -> None:
    assert run(answer(b"ok ", b"\xff", b" end")).answer == "ok � end"


def test_a_cut_inside_a_character_leaks_nothing_into_the_next_choice() -> None:
    vocabulary = Pieces()
    assert run(answer(b"\xf0\x9f"), vocabulary=vocabulary).answer == "�"
    assert run(answer(b"\x98\x80", b"x"), vocabulary=vocabulary).answer == "��x"


@pytest.mark.parametrize(("shows_stop", "said"), [(False, "hi"), (True, "hi.")])
def test_a_stop_token_is_counted_and_shown_only_if_that_is_asked_for(shows_stop: bool, said: str) -> None:
    vocabulary = Pieces()
    pipeline = Pipeline(vocabulary, shows_stop=shows_stop)
    deltas = pipeline.feed(chunk(vocabulary, answer(b"hi", b"."), 0, stop_token=True, finish_reason="stop"))
    deltas += pipeline.close("stop")
    assert "".join(delta.text for delta in deltas) == said
    assert (pipeline.num_tokens, pipeline.finish_reason) == (2, "stop")


def test_a_stop_string_inside_reasoning_is_ignored_and_one_right_after_the_close_tag_is_found() -> None:
    runs: list[Run] = [(REASONING, b"plan: Q: x"), (MARKUP, b"</think>"), (ANSWER, b"yes Q: no")]
    for cuts in ((), range(100)):
        outcome = run(cut(runs, list(cuts)), stop=("Q:",))
        assert (outcome.reasoning, outcome.answer, outcome.finish_reason) == ("plan: Q: x", "yes ", "stop")
    outcome = run(cut([*runs[:2], (ANSWER, b"Q: no")], []), stop=("Q:",))
    assert (outcome.reasoning, outcome.answer, outcome.finish_reason) == ("plan: Q: x", "", "stop")


@given(st.text("ho <", max_size=30), st.lists(st.integers(0, 30), max_size=10), st.integers(1, 6))
def test_text_ids_and_log_probabilities_end_at_the_same_point_in_every_split(
    text: str, cuts: list[int], per_chunk: int
) -> None:
    tokens = cut([(ANSWER, text.encode())], cuts)
    alone = run(tokens, stop=(" ho ho", "<<"), logprobs=True)
    together = run(tokens, per_chunk=per_chunk, stop=(" ho ho", "<<"), logprobs=True)
    assert together.answer == alone.answer
    assert together.token_ids == alone.token_ids
    assert together.entries == alone.entries
    assert b"".join(entry.raw for entry in alone.entries) == alone.answer.encode()


def test_a_stop_string_ends_the_ids_with_the_token_that_completed_it() -> None:
    outcome = run(answer(b"x", b"EN", b"D!", b"more", b"still more"), per_chunk=5, stop=("END",))
    assert (outcome.answer, outcome.num_tokens, outcome.finish_reason) == ("x", 3, "stop")


@given(
    st.text("abé", max_size=24),
    st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3).map(tuple),
    st.lists(st.integers(0, 40), max_size=20),
    st.integers(0, 12),
    st.integers(1, 5),
)
def test_a_stop_string_counts_if_it_ends_behind_min_tokens_in_every_split(
    text: str, stops: tuple[str, ...], cuts: list[int], min_tokens: int, per_chunk: int
) -> None:
    tokens = cut([(ANSWER, text.encode())], cuts)
    exempt = len(b"".join(raw for token in tokens[:min_tokens] for _, raw in token).decode("utf-8", "ignore"))
    ends = [at for at in range(exempt + 1, len(text) + 1) if text[:at].endswith(stops)]
    shown = text
    if ends:
        shown = text[: ends[0] - max(len(stop) for stop in stops if text[: ends[0]].endswith(stop))]
    outcome = run(tokens, per_chunk=per_chunk, stop=stops, min_tokens=min_tokens, logprobs=True)
    assert (outcome.answer, outcome.finish_reason) == (shown, "stop" if ends else "length")
    assert outcome.num_tokens > min_tokens or not ends
    assert b"".join(entry.raw for entry in outcome.entries) == shown.encode()


def test_tokens_of_reasoning_count_for_min_tokens_too() -> None:
    runs: list[Run] = [(REASONING, b"abc"), (MARKUP, b"</think>"), (ANSWER, b"x.y.z")]
    tokens = cut(runs, range(99))  # 3 of reasoning, 8 of the tag
    assert [run(tokens, stop=(".",), min_tokens=count).answer for count in (0, 12, 13, 15)] == [
        "x", "x", "x.y", "x.y.z",
    ]  # fmt: skip


def test_nothing_is_taken_after_the_end() -> None:
    vocabulary = Pieces()
    pipeline = Pipeline(vocabulary, stop=("b",))
    assert [delta.text for delta in pipeline.feed(chunk(vocabulary, answer(b"ab"), 0))] == ["a"]
    assert pipeline.feed(chunk(vocabulary, answer(b"c"), 1)) == []
    assert pipeline.close("length") == []
    assert (pipeline.finish_reason, pipeline.num_tokens) == ("stop", 1)


def test_a_blocked_word_never_leaves_and_ends_the_choice() -> None:
    for tokens in (
        answer(b"so zorgblat it"),
        answer(b"so zo", b"rgb", b"lat", b" it"),
        cut([(ANSWER, b"so zorgblat it")], range(99)),
    ):
        outcome = run(tokens, safety=BLOCK)
        assert (outcome.answer, outcome.finish_reason) == ("so ", "content_filter")


def test_reasoning_is_filtered_too() -> None:
    runs: list[Run] = [(REASONING, b"a zorgblat b"), (MARKUP, b"</think>"), (ANSWER, b"fine")]
    assert run(cut(runs, range(99)), safety=REDACT).reasoning == "a [redacted] b"
    blocked = run(cut(runs, range(99)), safety=BLOCK)
    assert (blocked.reasoning, blocked.answer, blocked.finish_reason) == ("a ", "", "content_filter")


def test_a_word_split_over_two_think_blocks_does_not_leave() -> None:
    runs: list[Run] = [
        (REASONING, b"zorg"),
        (MARKUP, b"</think>"),
        (ANSWER, b"x"),
        (MARKUP, b"<think>"),
        (REASONING, b"blat"),
    ]
    outcome = run(cut(runs, []), safety=BLOCK)
    assert (outcome.reasoning, outcome.answer, outcome.finish_reason) == ("", "x", "content_filter")


def test_reasoning_that_only_looked_forbidden_is_shown_when_a_stop_string_ends_the_answer() -> None:
    runs: list[Run] = [(REASONING, b"a zorg"), (MARKUP, b"</think>"), (ANSWER, b"x#")]
    outcome = run(cut(runs, []), safety=BLOCK, stop=("#",))
    assert (outcome.reasoning, outcome.answer, outcome.finish_reason) == ("a zorg", "x", "stop")


def test_a_stop_string_hides_a_forbidden_word_behind_it_and_one_inside_a_word_lets_its_beginning_out() -> None:
    assert run(answer(b"a#zorgblat"), safety=BLOCK, stop=("#",)).finish_reason == "stop"
    outcome = run(answer(b"a zorg", b"blat"), safety=BLOCK, stop=("rgb",))
    assert (outcome.answer, outcome.finish_reason) == ("a zo", "stop")


def test_harmless_text_is_not_delayed() -> None:
    outcome = run(answer(b"all ", b"good ", b"zo", b"o ", b"end"), safety=BLOCK, stop=("STOP",))
    assert outcome.after == ["all ", "all good ", "all good ", "all good zoo ", "all good zoo end"]


def test_log_probabilities_show_the_tokens_own_bytes() -> None:
    outcome = run(answer(b"\xf0\x9f", b"\x98\x80", b"!"), logprobs=True)
    assert [entry.raw for entry in outcome.entries] == [b"\xf0\x9f", b"\x98\x80", b"!"]
    assert b"".join(entry.raw for entry in outcome.entries) == outcome.answer.encode()


def test_log_probabilities_cover_the_answer_only() -> None:
    runs: list[Run] = [(REASONING, b"ab"), (MARKUP, b"</think>"), (ANSWER, b"\ncd")]
    outcome = run(cut(runs, [1, 5]), logprobs=True)
    assert b"".join(entry.raw for entry in outcome.entries) == b"cd"


@given(st.lists(st.integers(0, 20), max_size=8), st.integers(1, 5))
def test_redacted_tokens_have_no_log_probabilities(cuts: list[int], per_chunk: int) -> None:
    outcome = run(cut([(ANSWER, b"so zorgblat it is")], cuts), per_chunk=per_chunk, safety=REDACT, logprobs=True)
    assert outcome.answer == "so [redacted] it is"
    shown = b"".join(entry.raw for entry in outcome.entries)
    assert not any(char in shown for char in b"zrgbl")
    assert not any(b"zorgblat" in other.raw for entry in outcome.entries for other in entry.top)


def test_a_forbidden_word_is_no_alternative_either() -> None:
    vocabulary = Pieces()
    ids = [vocabulary.token(b"fine"), vocabulary.token(b" Zorgblat")]
    pipeline = Pipeline(vocabulary, safety=BLOCK, logprobs=True)
    source = TokenLogprob(-0.1, tuple(ids), (-0.1, -2.0))
    deltas = pipeline.feed(
        TokenChunk(request_id="r", attempt=0, index=0, token_ids=(ids[0],), logprobs=(source,))
    ) + pipeline.close("stop")
    assert [[other.token for other in entry.top] for delta in deltas for entry in delta.logprobs] == [["fine"]]
