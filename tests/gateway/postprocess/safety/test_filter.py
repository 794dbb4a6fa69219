"""What has been let go is a prefix of the whole text's filtering, in every split, and no more is held than must be."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from gateway.postprocess.safety.filter import SafetyFilter, check
from gateway.postprocess.safety.policy import Rule, SafetyPolicy

TERMS = Rule(id="t", kind="terms", action="redact", terms=("ab", "abcab", "É"), replacement="#")
WORDS = Rule(id="w", kind="terms", action="redact", terms=("ca",), replacement="W", whole_words=True)
PATTERN = Rule(id="p", kind="pattern", action="redact", pattern="b{2,3}(?:c|ac)?", replacement="%")
BLOCK = Rule(id="b", kind="pattern", action="block", pattern="cc[ab]c")
LONGER = Rule(id="l", kind="pattern", action="redact", pattern="a(?:bb|c)", replacement="L")
FLAG = Rule(id="f", kind="terms", action="flag", terms=("a",))
POLICY = SafetyPolicy((TERMS, WORDS, PATTERN, BLOCK, LONGER, FLAG))
TEXT = st.text("abc é\u0301E", max_size=24)


@given(TEXT, st.lists(st.integers(1, 4), min_size=24, max_size=24))
def test_any_split_lets_go_prefixes_of_the_whole_texts_filtering(text: str, sizes: list[int]) -> None:
    whole, whole_hits, blocked_by = check(POLICY, text, "answer")
    safety = SafetyFilter(POLICY, "answer")
    shown, at = "", 0
    for size in sizes:
        shown += safety.feed(text[at : at + size])
        at += size
        assert whole.startswith(shown)
    shown += safety.feed("", final=True)
    assert (shown, safety.blocked_by) == (whole, blocked_by)
    assert [hit for hit in safety.hits if hit.action != "flag"] == [hit for hit in whole_hits if hit.action != "flag"]


def brute_force(text: str) -> tuple[str, str | None]:
    """Leftmost, longest, first rule, by trying everything with Python's own `re`."""
    rules = [
        ("#", re.compile("abcab|ab")),
        ("W", re.compile(r"(?<!\w)ca(?!\w)")),
        ("%", re.compile("b{2,3}(?:c|ac)?")),
        (None, re.compile("cc[ab]c")),
        ("L", re.compile("a(?:bb|c)")),
    ]
    shown, at = "", 0
    while at < len(text):
        found = []
        for replacement, pattern in rules:
            for end in range(len(text), at, -1):
                match = re.compile(f"(?:{pattern.pattern})").fullmatch(text, at, end)
                if match and (replacement != "W" or pattern.match(text, at)):
                    found.append((end, replacement))
                    break
        if not found:
            shown, at = shown + text[at], at + 1
            continue
        end = max(end for end, _ in found)
        replacement = next(replacement for stop, replacement in found if stop == end)
        if replacement is None:
            return shown, "b"
        shown, at = shown + replacement, end
    return shown, None


@given(st.text("abc ", max_size=24))
def test_the_whole_text_filter_agrees_with_a_search_by_brute_force(text: str) -> None:
    shown, _, blocked_by = check(POLICY, text, "answer")
    assert (shown, blocked_by) == brute_force(text)


@given(st.text("abcx ", max_size=20))
def test_held_text_could_still_become_a_match(text: str) -> None:
    policy = SafetyPolicy((Rule(id="t", kind="terms", action="redact", terms=("abca", "bcb", "xx"), replacement=""),))
    safety = SafetyFilter(policy, "answer")
    for at, char in enumerate(text):
        safety.feed(char)
        held = text[safety.num_chars : at + 1]
        assert not held or any(term.startswith(held) for term in ("abca", "bcb", "xx"))


def test_a_complete_match_is_decided_as_soon_as_nothing_can_change_it() -> None:
    pattern = Rule(id="p", kind="pattern", action="redact", pattern="k[0-9]{3}")
    safety = SafetyFilter(SafetyPolicy((pattern,)), "answer")
    assert [safety.feed(char) for char in "ak123b"] == ["a", "", "", "", "[redacted]", "b"]


def test_a_flag_rule_notes_and_changes_nothing() -> None:
    policy = SafetyPolicy((Rule(id="f", kind="terms", action="flag", terms=("secret",)),))
    safety = SafetyFilter(policy, "answer")
    assert [safety.feed(piece) for piece in ("a sec", "ret x")] == ["a sec", "ret x"]
    assert [(hit.rule, hit.start, hit.end) for hit in safety.hits] == [("f", 2, 8)]


def test_after_a_block_nothing_comes_out() -> None:
    safety = SafetyFilter(POLICY, "answer")
    assert safety.feed("x ccac x") == "x "
    assert safety.blocked_by == "b"
    assert safety.feed(" more", final=True) == ""


def test_a_rule_for_another_direction_is_not_applied() -> None:
    policy = SafetyPolicy((Rule(id="t", kind="terms", action="redact", terms=("ab",), directions=("prompt",)),))
    assert check(policy, "ab", "answer")[0] == "ab"
    assert check(policy, "ab", "prompt")[0] == "[redacted]"


def test_what_is_held_is_never_longer_than_the_longest_match() -> None:
    rule = Rule(id="p", kind="pattern", action="redact", pattern="a{1,20}b")
    policy = SafetyPolicy((rule,))
    safety = SafetyFilter(policy, "answer")
    for number in range(1, 200):
        safety.feed("a")
        assert number - safety.num_chars <= policy.max_held("answer")
