"""Patterns match what Python's `re` matches, longest first, and know when more text could matter."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.postprocess.safety.filter import SafetyFilter
from gateway.postprocess.safety.patterns import PatternMatcher
from gateway.postprocess.safety.policy import Rule, SafetyPolicy
from gateway.postprocess.safety.syntax import MAX_LENGTH, lengths, parse

ATOMS = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"\w", "(?:ab|c)", "(a|bc)", "c?"])
QUANTIFIERS = st.sampled_from(["", "", "", "?", "{2}", "{0,2}", "{1,2}", "{,1}"])
PARTS = st.tuples(ATOMS, QUANTIFIERS).map(lambda part: f"(?:{part[0]}){part[1]}")
SEQUENCES = st.lists(PARTS, min_size=1, max_size=3).map("".join)
PATTERNS = st.one_of(
    SEQUENCES,
    st.lists(SEQUENCES, min_size=2, max_size=3).map("|".join),
    st.tuples(SEQUENCES, QUANTIFIERS, SEQUENCES).map(lambda parts: f"(?:{parts[0]}){parts[1]}{parts[2]}"),
)
TEXT = st.text("abc", min_size=1, max_size=5)


def walk(pattern: str, text: str) -> tuple[int, bool]:
    """Return the end of the longest match from the text's start (0: none), and whether more text could go on."""
    matcher = PatternMatcher(pattern)
    thread = matcher.first(text[0])
    longest = 0
    for end in range(1, len(text) + 1):
        if thread is None:
            return longest, False
        longest = end if thread.accepts else longest
        if end < len(text):
            thread = matcher.step(thread, text[end])
    return longest, thread is not None and thread.goes_on


@given(PATTERNS, TEXT)
def test_matches_are_the_longest_that_re_accepts(pattern: str, text: str) -> None:
    oracle = re.compile(pattern)
    if oracle.fullmatch(""):
        with pytest.raises(ValueError, match="empty"):
            PatternMatcher(pattern)
        return
    ends = [end for end in range(1, len(text) + 1) if oracle.fullmatch(text[:end])]
    assert walk(pattern, text)[0] == max(ends, default=0)


@given(PATTERNS, st.text("abc", min_size=1, max_size=3))
def test_a_match_is_open_exactly_when_some_text_to_come_makes_one(pattern: str, text: str) -> None:
    oracle = re.compile(pattern)
    if oracle.fullmatch(""):
        return
    most = min(lengths(parse(pattern))[1] - len(text), 5)
    could = any(
        oracle.fullmatch(text + "".join(more))
        for length in range(1, most + 1)
        for more in itertools.product("abc", repeat=length)
    )
    if could:
        assert walk(pattern, text)[1]
    elif most < 5:
        assert not walk(pattern, text)[1]


def test_an_open_match_of_nested_repeats_is_seen() -> None:
    assert walk("(?:b{1,2}(?:.|[ab])){1,2}", "bbc")[1]


def test_a_pattern_that_backtracks_for_ever_elsewhere_takes_linear_time() -> None:
    assert walk("(?:a?){30}a{30}b", "a" * 60) == (0, True)  # or the test hangs


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("a*", "'\\*' at 1 has no finite maximum"),
        ("(ab)+", "'\\+' at 4 has no finite maximum"),
        ("a{3,}", "no finite maximum; write \\{3,64\\}"),
        (r"\bfoo\b", "whole_words"),
        ("^foo", "whole_words"),
        (r"(a)\1", "not possible in a stream"),
        ("a(?=b)", "look-around"),
        ("(?<!a)b", "look-around"),
        ("a??", "longest"),
        ("a?", "matches the empty text"),
        ("(a", "not closed"),
        ("a)", "closes nothing"),
        ("[a", "not closed"),
        ("[z-a]", "bad character range"),
        ("?a", "repeats nothing"),
        ("a{x}", "begins no {m,n}"),
        ("a{5,2}", "smaller number first"),
        ("(?:a{500}){500}", f"at most {MAX_LENGTH}"),
        ("(?:[ab]?){512}a", f"at most {MAX_LENGTH}"),
        ("(?:" + "|".join("(?:abcdefgh){60}" for _ in range(10)) + ")", "too large"),
        ("(" * 60 + "a" + ")" * 60, "nested"),
    ],
)
def test_a_pattern_that_cannot_stream_is_refused_with_what_to_write_instead(pattern: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PatternMatcher(pattern)


def test_flags_classes_and_escapes_are_those_of_re() -> None:
    assert walk("(?i)AbC", "aBc")[0] == 3
    assert walk("(?s)a.b", "a\nb")[0] == 3
    assert walk("a.b", "a\nb")[0] == 0
    assert walk(r"\d{4}([ -]?\d{4}){3}", "1234-5678 12345678x")[0] == 18
    assert walk(r"[]x]\x41\u00e9\.", "]Aé.")[0] == 4
    assert walk("(?P<name>ab){2}", "abab")[0] == 4


def test_whole_words_wait_for_the_next_character() -> None:
    policy = SafetyPolicy([Rule(id="p", kind="pattern", action="redact", pattern="foo", whole_words=True)])

    def fed(*pieces: str) -> list[str]:
        safety = SafetyFilter(policy, "answer")
        return [*(safety.feed(piece) for piece in pieces), safety.feed("", final=True)]

    assert fed("foo") == ["", "[redacted]"]
    assert fed("foo", ".") == ["", "[redacted].", ""]
    assert fed("foo", "d") == ["", "food", ""]
    assert fed("x", "foo.") == ["x", "foo.", ""]
