"""Bytes of tokens become the text that decoding them at once gives."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.postprocess.detokenizer import Detokenizer, prefix_bytes

BYTES = st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode))


def pieces_of(raw: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    return [raw[start:end] for start, end in pairwise(places)]


@given(BYTES, BYTES, st.lists(st.integers(0, 80), max_size=8))
def test_any_split_gives_the_text_of_decoding_at_once(head: bytes, tail: bytes, cuts: list[int]) -> None:
    raw = head + tail
    detokenizer = Detokenizer()
    text = "".join(detokenizer.feed(piece) for piece in pieces_of(raw, cuts)) + detokenizer.flush()
    assert text == raw.decode("utf-8", "replace")
    assert detokenizer.num_chars == len(text)


def test_a_character_split_over_two_tokens_comes_out_whole() -> None:
    detokenizer = Detokenizer()
    assert [detokenizer.feed(piece) for piece in (b"\xf0\x9f", b"\x98\x80", b"\xe4", b"\xbd\xa0")] == [
        "",
        "😀",
        "",
        "你",
    ]


def test_what_follows_a_character_that_never_ends_comes_behind_its_replacement() -> None:
    detokenizer = Detokenizer()
    assert [detokenizer.feed(piece) for piece in (b"\xe4", b"ab", b"c")] == ["", "\ufffdab", "c"]


def test_an_incomplete_character_at_the_end_is_one_replacement_character() -> None:
    for raw in (b"\xf0", b"\xf0\x9f", b"\xf0\x9f\x98", b"\xe4\xbd"):
        detokenizer = Detokenizer()
        assert detokenizer.feed(raw) + detokenizer.flush() == "�"


def test_after_a_flush_the_next_byte_starts_afresh() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.feed(b"\xf0\x9f") + detokenizer.flush() + detokenizer.feed(b"\x98a") == "��a"


@given(st.text(max_size=10), st.integers(0, 10), st.integers(0, 8))
def test_prefix_bytes_of_a_text_are_those_of_its_first_characters(text: str, num_chars: int, num_pending: int) -> None:
    raw = text.encode()
    wanted = text[:num_chars].encode()
    pending = text[:1].encode()[: min(num_pending, len(text[:1].encode()) - 1)] if text else b""
    assert prefix_bytes(b"", raw, num_chars) == len(wanted)
    assert prefix_bytes(pending, raw[len(pending) :], num_chars) == max(0, len(wanted) - len(pending))
