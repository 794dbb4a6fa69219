"""For any text, any split and any rules: streamed output is the whole text's, a prefix at each moment, and clean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.postprocess.safety import automaton
from gateway.postprocess.safety.detectors import DETECTORS
from gateway.postprocess.safety.filter import SafetyFilter, check
from gateway.postprocess.safety.policy import Rule, SafetyPolicy

# letters, their lookalikes, full-width and composed forms, marks that compose and marks that do not, zero-width
# characters, a ligature, digits of two scripts, halves of a surrogate pair
ALPHABET = "abcoABс о а ｂｃ éé\u0301\u0323\u0337\u200b\u00ad\ufe0fﬁ14٤@.-+ \n\ud83d\ude00🙂가"
FRAGMENTS = st.sampled_from(
    ["a@b.co", "4111 1111 1111 1111", "GB82WEST12345698765432", "+49 30 123456", "::1", "10.0.0.1", "sk-" + "a1" * 10,
     "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "cab", "bó", "a\u200bb"]
)  # fmt: skip
TEXT = st.lists(st.one_of(st.text(ALPHABET, max_size=6), FRAGMENTS), max_size=8).map("".join)
SPLIT = st.lists(st.integers(1, 6), max_size=60)
TERMS = st.lists(st.text("abcoéс1가", min_size=1, max_size=4), min_size=1, max_size=4).map(tuple)
PATTERNS = st.sampled_from(["[ab]{1,3}c", "a(?:b|co){1,2}", r"\d{2,4}", "b.{0,3}c", r"(?i)ab\s?c"])
ACTIONS = st.sampled_from(["redact", "redact", "block", "flag"])


@st.composite
def policies(draw: st.DrawFn, *, edges: bool = True) -> SafetyPolicy:
    """Draw a policy of up to five rules."""
    rules: list[Rule] = []
    for number in range(draw(st.integers(1, 5))):
        common: dict[str, Any] = {
            "id": str(number),
            "action": draw(ACTIONS) if edges else "redact",
            "replacement": "\t",
        }
        words = edges and draw(st.booleans())
        kind: Any = draw(st.sampled_from(["terms", "pattern", "detect"] if edges else ["terms", "pattern"]))
        if kind == "terms":
            marks = draw(st.booleans())
            rules.append(Rule(kind=kind, terms=draw(TERMS), whole_words=words, ignore_accents=marks, **common))
        elif kind == "pattern":
            rules.append(Rule(kind=kind, pattern=draw(PATTERNS), whole_words=words, **common))
        else:
            chosen = draw(st.sets(st.sampled_from(sorted(DETECTORS)), min_size=1).map(sorted).map(tuple))
            common["replacement"] = draw(st.sampled_from(["", "\t"]))
            rules.append(Rule(kind=kind, detect=chosen, **common))
    return SafetyPolicy(rules)


@settings(max_examples=120)
@given(policies(), TEXT, SPLIT)
def test_streamed_output_is_the_whole_texts_in_any_split(policy: SafetyPolicy, text: str, sizes: list[int]) -> None:
    whole, whole_hits, blocked_by = check(policy, text, "answer")
    safety = SafetyFilter(policy, "answer")
    shown, at = "", 0
    for size in sizes:
        shown += safety.feed(text[at : at + size])
        at += size
        assert whole.startswith(shown)
        assert safety.delay.max_chars <= policy.max_held("answer")
    shown += safety.feed(text[at:], final=True)
    assert (shown, safety.blocked_by) == (whole, blocked_by)
    acted = [hit for hit in whole_hits if hit.action != "flag"]
    assert [hit for hit in safety.hits if hit.action != "flag"] == acted


@settings(max_examples=100)
@given(policies(edges=False), TEXT, SPLIT)
def test_what_left_contains_no_forbidden_span(policy: SafetyPolicy, text: str, sizes: list[int]) -> None:
    safety = SafetyFilter(policy, "answer")
    shown, at = "", 0
    for size in sizes:
        shown += safety.feed(text[at : at + size])
        at += size
    shown += safety.feed(text[at:], final=True)
    assert check(policy, shown.replace("\t", "\0"), "answer")[1] == []


@given(policies(), TEXT)
def test_text_is_held_only_while_some_text_to_come_could_change_it(policy: SafetyPolicy, text: str) -> None:
    safety = SafetyFilter(policy, "answer")
    shown = safety.feed(text)
    if safety.blocked_by is None and safety.num_chars == len(text):
        assert shown == check(policy, text, "answer")[0]
    assert len(text) - safety.num_chars <= policy.max_held("answer") or safety.blocked_by is not None


def test_an_automaton_that_forgets_goes_on_as_if_it_had_not(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "mail a@b.org, 4111 1111 1111 1111 and zórg zorg at 10.0.0.1 " * 3
    rules = [
        Rule(id="t", kind="terms", action="redact", terms=("zorg", "and z")),
        Rule(id="d", kind="detect", action="redact", detect=tuple(DETECTORS)),
    ]
    expected = check(SafetyPolicy(rules), text, "answer")[0]
    monkeypatch.setattr(automaton, "_MAX_STEPS", 7)
    safety = SafetyFilter(SafetyPolicy(rules), "answer")
    assert "".join(safety.feed(char) for char in text) + safety.feed("", final=True) == expected
