"""Tool calls in the pipeline: control tokens as tags, one call only, and log probabilities beside calls."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.postprocess.delta import TextDelta
from gateway.postprocess.pipeline import Pipeline
from gateway.postprocess.tools.splitter import CallSplitter
from gateway.postprocess.tools.styles import STYLES
from tests.gateway.postprocess.scripted import Pieces, Run, answer, chunk, cut
from wire.messages import ANSWER, MARKUP, REASONING

TAGS = {b"<tool>": "[TOOL_CALLS]", b"<args>": "[ARGS]"}


class Specials(Pieces):
    """Pieces of which some are control tokens, without bytes."""

    def token_bytes(self, token_id: int) -> bytes:
        piece = super().token_bytes(token_id)
        return b"" if piece in TAGS else piece


class Showing(Pipeline):
    """A pipeline that keeps what it has shown."""

    shown: list[TextDelta]


def feed(style: str, tokens: list[list[Run]], *, per_chunk: int = 1, one_call: bool = False, **options: Any) -> Showing:
    vocabulary = Specials()
    tags = {vocabulary.token(piece): text.encode() for piece, text in TAGS.items()}
    calls = CallSplitter(STYLES[style]({"f": None}), name="r", one_call=one_call)
    pipeline = Showing(vocabulary, calls=calls, tags=tags, **options)
    pipeline.shown = []
    for at in range(0, len(tokens), per_chunk):
        if pipeline.finish_reason is None:
            pipeline.shown += pipeline.feed(chunk(vocabulary, tokens[at : at + per_chunk], at))
    pipeline.shown += pipeline.close("stop")
    return pipeline


def text(deltas: list[TextDelta], kind: str) -> str:
    return "".join(delta.text for delta in deltas if delta.kind == kind)


def test_control_tokens_that_have_no_bytes_are_seen_as_tags() -> None:
    for tokens in (
        answer(b"so ", b"<tool>", b"f", b"<args>", b'{"a"', b": 1}"),
        answer(b"so ", b"<tool>", b'[{"name": "f", ', b'"arguments": {"a": 1}}]'),
    ):
        for per_chunk in (1, 2, 9):
            outcome = feed("mistral", tokens, per_chunk=per_chunk)
            assert (text(outcome.shown, "answer"), text(outcome.shown, "tool")) == ("so", '{"a": 1}')
            assert outcome.finish_reason == "tool_calls"


@given(st.lists(st.integers(0, 60), max_size=20), st.integers(1, 5))
def test_text_held_for_a_call_is_exempt_from_stop_strings_by_when_it_came(cuts: list[int], per_chunk: int) -> None:
    first = cut([(ANSWER, b'a<tool_call>{"name": "f", "arguments": {}}</tool_call>b<to')], cuts)
    rest = cut([(ANSWER, b"x<toy")], cuts)
    for min_tokens, said in ((0, "ab"), (len(first) - 1, "ab"), (len(first), "ab<tox"), (99, "ab<tox<toy")):
        outcome = feed("hermes", first + rest, per_chunk=per_chunk, stop=("<to",), min_tokens=min_tokens)
        assert (text(outcome.shown, "answer"), text(outcome.shown, "tool")) == (said, "{}")


def test_a_control_token_inside_reasoning_begins_no_call() -> None:
    tokens: list[list[Run]] = [
        [(REASONING, b"<tool>")],
        [(REASONING, b"f{}")],
        [(MARKUP, b"</think>")],
        [(ANSWER, b"f")],
    ]
    outcome = feed("mistral", tokens)
    assert not text(outcome.shown, "tool") and text(outcome.shown, "answer") == "f"


def test_a_call_behind_a_stop_string_is_none_also_within_one_token() -> None:
    said = b'so END<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    for tokens in (answer(said), answer(said[:6], said[6:])):
        outcome = feed("hermes", tokens, one_call=True, stop=("END",))
        assert (text(outcome.shown, "answer"), text(outcome.shown, "tool")) == ("so ", "")
        assert (outcome.finish_reason, outcome.stop_string) == ("stop", "END")


def test_the_first_whole_call_ends_an_answer_that_may_make_one_only() -> None:
    call = b'<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    for per_chunk in (1, 99):
        outcome = feed(
            "hermes", cut([(ANSWER, call + b" and " + call)], range(200)), one_call=True, per_chunk=per_chunk
        )
        assert (text(outcome.shown, "tool"), text(outcome.shown, "answer")) == ('{"a": 1}', "")
        assert outcome.finish_reason == "tool_calls"
        assert outcome.num_tokens == call.index(b"</tool_call>")


@given(st.lists(st.integers(0, 90), max_size=12), st.integers(1, 5))
def test_entries_of_log_probabilities_are_the_text_that_is_said(cuts: list[int], per_chunk: int) -> None:
    said = b"I say."
    raw = said + b' <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    tokens = cut([(ANSWER, raw)], [*cuts, len(said)])
    outcome = feed("hermes", tokens, per_chunk=per_chunk, logprobs=True, stop=("zzz",))
    assert b"".join(entry.raw for delta in outcome.shown for entry in delta.logprobs) == said
    assert text(outcome.shown, "answer") == said.decode()
