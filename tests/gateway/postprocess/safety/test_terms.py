"""Terms are found however they are spelled, and only where the text contains them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.postprocess.safety.filter import SafetyFilter, check
from gateway.postprocess.safety.match import MAX_INVISIBLE
from gateway.postprocess.safety.policy import Rule, SafetyPolicy
from gateway.postprocess.safety.terms import TermMatcher

ALPHABET = "aAeéEÉ\u0301\u0323\u0302xﬁfiIİıßsSΣςσ가각ㅏ ё①1"
STARTERS = "".join(char for char in ALPHABET if not unicodedata.combining(char))


def policy(*terms: str, whole_words: bool = False) -> SafetyPolicy:
    return SafetyPolicy((Rule(id="t", kind="terms", action="redact", terms=terms, whole_words=whole_words),))


def filtered(text: str, *terms: str, whole_words: bool = False) -> str:
    return check(policy(*terms, whole_words=whole_words), text, "answer")[0]


def nfkc_casefold(text: str) -> str:
    """Unicode's toNFKC_Casefold, but for ignorable characters."""
    folded = unicodedata.normalize("NFKD", text).casefold()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKD", folded).casefold())


@given(st.text(ALPHABET, max_size=12), st.text(STARTERS, min_size=1, max_size=3))
@example("ê\u0323x", "ệ")
@example("e\u0323\u0302x", "ệ")
def test_no_text_that_contains_a_term_under_nfkc_casefold_passes(text: str, term: str) -> None:
    if nfkc_casefold(term) in nfkc_casefold(text):
        assert check(policy(term), text, "answer")[1], "the term is in the text and was not found"


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("ZORGBLAT", "zorgblat"),
        ("zorgblat", "ZorgBlat"),
        ("ｚｏｒｇｂｌａｔ", "zorgblat"),
        ("zo\u00adrg\u200bblat", "zorgblat"),
        ("STRASSE", "straße"),
        ("oﬀer", "offer"),
        ("cafe\u0301", "café"),
        ("CAFÉ", "cafe\u0301"),
    ],
)
def test_a_term_is_found_in_other_spellings(text: str, term: str) -> None:
    assert filtered(f"a {text} b", term) == "a [redacted] b"


@pytest.mark.parametrize(("text", "term"), [("café", "cafe"), ("cafe\u0301", "cafe"), ("cafe", "café"), ("각", "가")])
def test_another_letter_is_another_word(text: str, term: str) -> None:
    assert filtered(text, term) == text


def test_the_longest_term_from_the_leftmost_place_counts() -> None:
    assert filtered("abcde", "bcd", "abc", "ab") == "[redacted]de"
    assert filtered("abcdabd", "abcd", "b") == "[redacted]a[redacted]d"


def test_whole_words_leave_longer_words_alone() -> None:
    assert filtered("class ass, ass", "ass", whole_words=True) == "class [redacted], [redacted]"
    assert filtered("ass_x assé x-ass", "ass", whole_words=True) == "ass_x assé x-[redacted]"


def test_invisible_characters_cannot_make_the_filter_hold_for_ever() -> None:
    safety = SafetyFilter(policy("ab"), "answer")
    assert safety.feed("a" + "\u200b" * MAX_INVISIBLE) == ""
    assert safety.feed("\u200b") != ""


@pytest.mark.parametrize("text", ["zоrgblаt", "zοrgblat", "z\u0337o\u0336r\u0337gblat", "ZORGBʟᴀT", "𝐳𝐨𝐫𝐠𝐛𝐥𝐚𝐭"])
def test_a_term_is_found_in_lookalikes_and_under_strokes(text: str) -> None:
    assert filtered(f"a {text} b", "zorgblat") == "a [redacted] b"


def test_a_term_of_another_script_is_found_too() -> None:
    assert filtered("это слово тут", "слово") == "это [redacted] тут"


def test_lookalikes_and_accents_are_switches_of_a_rule() -> None:
    exact = SafetyPolicy((Rule(id="t", kind="terms", action="redact", terms=("cop",), lookalikes=False),))
    assert check(exact, "сор cop", "answer")[0] == "сор [redacted]"
    bare = SafetyPolicy((Rule(id="t", kind="terms", action="redact", terms=("zorg",), ignore_accents=True),))
    assert check(bare, "zórg zo\u0301rğ", "answer")[0] == "[redacted] [redacted]"


@pytest.mark.parametrize("term", ["", "\u200b", "\u0301a", "a" + "\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u0309"])
def test_a_term_that_cannot_be_matched_is_refused(term: str) -> None:
    with pytest.raises(ValueError, match="term"):
        TermMatcher([term])
