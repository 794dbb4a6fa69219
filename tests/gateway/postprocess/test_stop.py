"""Stop strings end the answer wherever tokens are cut, and hold back no more than they must."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.postprocess.detokenizer import Detokenizer
from gateway.postprocess.stop import StopMatcher

TEXT = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


def expected(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Earliest end wins, of several the longest: tried by brute force."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], max(found, key=len)
    return text, None


@given(TEXT, STOPS, st.lists(st.integers(1, 5), min_size=30, max_size=30))
def test_any_split_gives_the_text_before_the_stop_string_that_ends_first(
    text: str, stops: tuple[str, ...], sizes: list[int]
) -> None:
    matcher = StopMatcher(stops)
    shown, at = "", 0
    wanted, hit = expected(text, stops)
    for size in sizes:
        shown += matcher.feed(text[at : at + size])
        at += size
        assert wanted.startswith(shown), "part of a stop string has leaked"
        if matcher.hit is None and at <= len(text):
            held = text[len(shown) : at]
            assert not held or any(stop.startswith(held) for stop in stops), "more is held than could become a stop"
    shown += matcher.close() if matcher.hit is None else ""
    assert (shown, matcher.hit) == (wanted, hit)
    assert matcher.num_chars == len(shown)


@given(st.integers(1, 1024), st.data())
def test_a_stop_string_of_any_length_leaks_nothing_however_its_bytes_are_cut(length: int, data: st.DataObject) -> None:
    stop = data.draw(st.text("aé🍕", min_size=length, max_size=length))
    before = data.draw(st.text("xé", max_size=8).filter(lambda text: stop not in text + stop[:-1]))
    raw = (before + stop + "behind").encode()
    size = data.draw(st.integers(1, 40))
    detokenizer, matcher = Detokenizer(), StopMatcher((stop,))
    shown = ""
    for at in range(0, len(raw), size):
        shown += matcher.feed(detokenizer.feed(raw[at : at + size]))
        assert before.startswith(shown), "part of the stop string has leaked"
    assert (shown, matcher.hit) == (before, stop)


def test_held_text_is_let_go_when_it_can_no_longer_match() -> None:
    matcher = StopMatcher(("END-OF",))
    assert [matcher.feed(piece) for piece in ("x", "EN", "joy")] == ["x", "", "ENjoy"]


def test_the_beginning_of_a_stop_string_never_leaves() -> None:
    matcher = StopMatcher(("END-OF",))
    assert "".join(matcher.feed(piece) for piece in ("x", "EN", "D-", "OF", "!")) == "x"
    assert matcher.hit


def test_of_two_stop_strings_the_one_that_ends_first_wins_even_inside_the_other() -> None:
    matcher = StopMatcher(("abcd", "bc"))
    assert matcher.feed("xabcd") == "xa"


def test_a_match_that_failed_can_overlap_the_next_one() -> None:
    matcher = StopMatcher(("aab",))
    assert "".join(matcher.feed(char) for char in "aaab") == "a"
    assert matcher.hit


def test_a_stop_string_of_many_megabytes_of_near_misses_costs_linear_time() -> None:
    matcher = StopMatcher(("a" * 200 + "b",))
    assert len(matcher.feed("a" * 100_000)) == 99_800


def test_an_exempt_stop_string_is_text_and_is_let_go_at_once_unless_it_begins_another() -> None:
    matcher = StopMatcher(("END", "ENDING"))
    assert matcher.feed("x END", 5) == "x "
    assert matcher.feed(" or", 0) == "END or"
    matcher = StopMatcher(("aa",))
    assert matcher.feed("aa", 2) == "a", "the second one may begin a stop string that is none of the exempt"
    assert (matcher.feed("a"), matcher.hit) == ("", "aa")


@given(TEXT, STOPS, st.integers(1, 5))
def test_a_stop_string_that_is_shown_is_shown_whole_and_nothing_behind_it(
    text: str, stops: tuple[str, ...], size: int
) -> None:
    matcher = StopMatcher(stops, shown=True)
    shown = "".join(matcher.feed(text[at : at + size]) for at in range(0, len(text), size))
    shown += matcher.close() if matcher.hit is None else ""
    before, hit = expected(text, stops)
    assert (shown, matcher.hit, matcher.num_chars) == (before + (hit or ""), hit, len(before + (hit or "")))


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(("x", ""))
