"""Harmony's messages at the edge: what is said and called comes out, in every cut, and of the frame nothing ever."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.postprocess.pipeline import Pipeline
from gateway.postprocess.tools.events import Event, Gap, Hidden, Text
from gateway.postprocess.tools.harmony import HarmonyParser
from gateway.postprocess.tools.splitter import CallSplitter
from model_svc.engine.phase_runs import Runs, phase_marks
from tests.gateway.postprocess.tools.calls import Found, collect
from tests.harmony import in_characters, marked, tokens
from wire.harmony import TAGS
from wire.messages import TokenChunk, TokenLogprob

FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"
CALL = "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
OSLO = '{"city": "Oslo"}'


def parse(pieces: Sequence[str], known: Sequence[str] = ("f",), *, cut: bool = False) -> Found:
    parser = HarmonyParser(known)
    events: list[Event] = [event for piece in pieces for event in parser.feed(piece)] + parser.close(cut=cut)
    size = sum(event.num_chars if isinstance(event, Hidden) else len(event.text) for event in events
               if isinstance(event, Hidden | Text | Gap))  # fmt: skip
    assert size == sum(map(len, pieces)), "every character is text or hidden, or has a gap in its place"
    return collect([Text(event.text) if isinstance(event, Gap) else event for event in events])


CASES: list[tuple[str, Found]] = [
    ("<|channel|>final<|message|>Hi. \n", Found("Hi. \n", [])),
    (f"<|channel|>analysis<|message|>hidden{FINAL}Hi.", Found("Hi.", [])),
    (f"<|channel|>commentary<|message|>I look.<|end|>{CALL}{OSLO}", Found("I look.", [("f", OSLO, True)])),
    (f"<|channel|>commentary<|message|>One.{FINAL}Two.", Found("One.\n\nTwo.", [])),
    (f"<|channel|>commentary<|message|>{FINAL}Two.", Found("Two.", [])),
    (f"<|channel|>commentary<|message|>One.{FINAL}", Found("One.", [])),
    (f"<|channel|>final<|message|>One.<|end|><|message|>Two.{FINAL}Three.", Found("One.\n\nTwo.\n\nThree.", [])),
    (f" to=functions.f<|channel|>commentary json<|message|>{OSLO}", Found("", [("f", OSLO, True)])),
    (f"{CALL}{OSLO}<|call|>{CALL}{{}}<|end|>", Found("", [("f", OSLO, True), ("f", "{}", True)])),
    (f"{CALL}\n {OSLO}\n<|call|>after", Found("", [("f", OSLO, True)])),
    (f"{CALL}", Found("", [("f", "{}", True)])),
    (f"{CALL} <|call|>", Found("", [("f", "{}", True)])),
    (f"{CALL}no JSON<|call|>", Found("", [("f", "no JSON", False)])),
    (f'{CALL}{{"a": "<|call|>', Found("", [("f", '{"a": "', False)])),
    (f"{CALL}{OSLO}{FINAL}Done.", Found("Done.", [("f", OSLO, True)])),
    (f"<|channel|>final<|message|>One.<|end|>{CALL}{OSLO}{FINAL}Done.", Found("One.\n\nDone.", [("f", OSLO, True)])),
    # malformed: nothing of the frame, no crash
    ("no header at all", Found("", [])),
    ("<|channel|>secret<|message|>x<|end|>", Found("", [])),
    ("<|channel|>final", Found("", [])),
    ("<|channel|>final Hello there", Found("", [])),
    ("<|message|>Hi.", Found("Hi.", [])),
    ("<|channel|>final<|message|>a<|message|>b<|constrain|>c", Found("abc", [])),
    ("<|channel|>final<|message|>a<|end|>b<|call|>c", Found("a", [])),
    ("<|start|>user<|message|>me", Found("", [])),
    ("<|channel|>commentary to=python<|message|>1", Found("", [])),
    ("<|channel|>commentary to=functions.<|message|>1", Found("", [])),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_every_split_gives_the_same(text: str, expected: Found) -> None:
    whole = in_characters(text)
    assert parse([whole]) == parse(list(whole)) == expected
    for at in range(1, len(whole)):
        assert parse([whole[:at], whole[at:]]) == expected


def test_text_that_spells_a_control_token_is_text() -> None:
    assert parse([in_characters("<|channel|>final<|message|>") + "<|end|> and <|call|>"]).text == "<|end|> and <|call|>"


def test_a_call_that_was_cut_is_a_call_that_is_not_whole() -> None:
    whole = in_characters(CALL + OSLO)
    for at in range(len(whole)):
        text, calls = parse([whole[:at]], cut=True)
        assert not text and all(OSLO.startswith(arguments) and not done for _, arguments, done in calls)


def test_calls_that_nobody_offered_are_hidden() -> None:
    whole = in_characters(f"<|channel|>commentary<|message|>I look.<|end|>{CALL}{OSLO}")
    assert parse([whole], ()) == Found("I look.", [])


def test_an_answer_that_was_begun_is_gone_on_with() -> None:
    parser = HarmonyParser()
    parser.go_on()
    assert collect(parser.feed(in_characters(" more<|return|>")) + parser.close()).text == " more"


class Texts:
    """A vocabulary of pieces in which control tokens have no text."""

    strips_first_space = False

    def __init__(self, raw: Sequence[bytes]) -> None:
        self.pieces = list(dict.fromkeys(raw))
        self.controls = {tag: at for at, piece in enumerate(self.pieces) for tag in TAGS if tag.encode() == piece}

    def token_bytes(self, token_id: int) -> bytes:
        """Return a token's bytes."""
        return b"" if token_id in self.controls.values() else self.pieces[token_id]


class Shown:
    """What a client has."""

    def __init__(self, found: Sequence[tuple[bytes, Runs]], per_chunk: int, *, known: Sequence[str] = ("f",),
                 finish: str = "stop", stop_token: bool = False, **options: object) -> None:  # fmt: skip
        texts = Texts([raw for raw, _ in found])
        calls = CallSplitter(HarmonyParser(known), name="r")
        pipeline = Pipeline(texts, calls=calls, tags=calls.control_texts(texts.controls), **options)  # type: ignore[arg-type]
        self.deltas = []
        for at in range(0, len(found), per_chunk):
            group = found[at : at + per_chunk]
            phase, marks = phase_marks([runs for _, runs in group])
            ids = tuple(texts.pieces.index(raw) for raw, _ in group)
            logprobs = tuple(TokenLogprob(-0.5) for _ in ids) if options.get("logprobs") else ()
            last = stop_token and at + per_chunk >= len(found)
            self.deltas += pipeline.feed(
                TokenChunk(request_id="r", attempt=0, index=at, token_ids=ids, phase=phase, marks=marks,
                           logprobs=logprobs, stop_token=last)
            )  # fmt: skip
            if pipeline.finish_reason is not None:
                break
        else:
            self.deltas += pipeline.close(finish)
        self.finish_reason = pipeline.finish_reason
        self.num_reasoning_tokens = pipeline.num_reasoning_tokens

    def text(self, kind: str) -> str:
        """Return the text of one kind."""
        return "".join(delta.text for delta in self.deltas if delta.kind == kind)


WORDS = ("analysis", "commentary", "final", "assistant", "f ", '{"city":')
ANSWERS = [
    (f"<|channel|>analysis<|message|>\nSo.\n{FINAL}\nHi.", "So.", "\nHi.", "", "stop"),
    (f"<|channel|>analysis<|message|>So.<|end|>{CALL}{OSLO}<|call|>", "So.", "", OSLO, "tool_calls"),
    (
        f"<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        f"<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{OSLO}<|call|>",
        "So.", "I look.", OSLO, "tool_calls",
    ),
    ("<|channel|>analysis to=python code<|message|>1+1<|call|>", "1+1", "", "", "stop"),
    (f"<|channel|>secret<|message|>x{FINAL}é😀<|return|>", "x", "é😀", "", "stop"),
    ("<|channel|>final Hello<|return|>", "", "", "", "stop"),
    (
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two."
        "<|end|><|start|>assistant<|channel|>commentary<|message|>So.<|end|><|start|>assistant<|channel|>analysis"
        f"<|message|>Three.{FINAL}Hi.<|return|>",
        "One.\n\nTwo.Three.", "So.\n\nHi.", "", "stop",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reasoning", "answer", "arguments", "finish"), ANSWERS)
@pytest.mark.parametrize("words", [(), WORDS])
def test_a_client_gets_thoughts_text_and_calls_however_many_tokens_come_at_once(
    text: str, reasoning: str, answer: str, arguments: str, finish: str, words: tuple[str, ...]
) -> None:
    found = marked(tokens(text, *words))
    for per_chunk in (1, 2, 3, 7, len(found)):
        for stops in (False, text.endswith(("<|return|>", "<|call|>"))):
            shown = Shown(found, per_chunk, stop_token=stops)
            got = (shown.text("reasoning"), shown.text("answer"), shown.text("tool"), shown.finish_reason)
            assert got == (reasoning, answer, arguments, finish)


@pytest.mark.parametrize("text", [text for text, *_ in ANSWERS])
def test_an_answer_that_was_cut_shows_nothing_else_than_the_whole_one(text: str) -> None:
    raw = tokens(text, *WORDS)
    whole = Shown(marked(raw), 1)
    for cut in range(len(raw)):
        shown = Shown(marked(raw[:cut]), 2, finish="length")
        assert shown.finish_reason == "length"
        for kind in ("reasoning", "answer", "tool"):
            assert whole.text(kind).startswith(shown.text(kind).rstrip("\n\ufffd")), (kind, cut)


def test_stop_strings_are_looked_for_in_what_is_shown_alone() -> None:
    found = marked(tokens(f"<|channel|>analysis<|message|>final{FINAL}a final word"))
    shown = Shown(found, 1, stop=("final", "message", "assistant"))
    assert (shown.text("answer"), shown.finish_reason) == ("a ", "stop")


def test_log_probabilities_are_of_what_is_said() -> None:
    found = marked(tokens(f"<|channel|>commentary<|message|>One.{FINAL}Two."))
    for per_chunk in (1, 5, len(found)):
        entries = [entry for delta in Shown(found, per_chunk, logprobs=True).deltas for entry in delta.logprobs]
        assert b"".join(entry.raw for entry in entries) == b"One.Two."


def test_a_control_token_amid_thoughts_has_no_text_there() -> None:
    found = [(raw, ((0, 1),)) for raw in tokens("a<|start|>b<|message|>c")]
    assert Shown(found, 1).text("reasoning") == "abc"


FRAGMENTS = st.sampled_from((*TAGS, *TAGS, "analysis", "commentary", "final", " to=functions.f", " to=python", "json",
                             "assistant", OSLO, "{", '"', "said", "é", "\n"))  # fmt: skip


@given(st.lists(FRAGMENTS, max_size=24), st.integers(1, 9), st.booleans(), st.sampled_from([(), ("f",)]))
def test_any_row_of_tokens_shows_no_frame(parts: list[str], per_chunk: int, cut: bool, known: tuple[str, ...]) -> None:
    found = marked([part.encode() for part in parts])
    options = {"known": known, "finish": "length" if cut else "stop"}
    one, many = Shown(found, 1, **options), Shown(found, per_chunk, **options)  # type: ignore[arg-type]
    for kind in ("reasoning", "answer", "tool"):
        assert one.text(kind) == many.text(kind)
        assert not any(tag in one.text(kind) for tag in TAGS)
        assert not any(chr(0xFDD0 + at) in one.text(kind) for at in range(32))
    assert one.finish_reason == many.finish_reason
    if not known:
        assert not one.text("tool")
    json.dumps([one.text("answer")])


def test_two_cuts_of_a_whole_answer_change_nothing() -> None:
    whole = in_characters(ANSWERS[2][0].partition("<|end|>")[2])
    expected = parse([whole])
    for first, second in combinations(range(0, len(whole), 5), 2):
        assert parse([whole[:first], whole[first:second], whole[second:]]) == expected
