"""The byte matcher finds what bytes.find finds, however the bytes are cut."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from model_svc.engine.byte_matcher import ByteMatcher


def scan_all(tag: bytes, pieces: list[bytes]) -> tuple[list[int], int]:
    """Feed pieces as the tracker does; returns where tags begin in the whole, and the bytes held at the end."""
    matcher = ByteMatcher(tag)
    found, base = [], 0
    for piece in pieces:
        at = 0
        while (hit := matcher.scan(piece[at:])) is not None:
            found.append(base + at + hit[0])
            at += hit[1]
        base += len(piece)
    return found, matcher.num_held


def find_all(tag: bytes, text: bytes) -> tuple[list[int], int]:
    found, at = [], 0
    while (hit := text.find(tag, at)) >= 0:
        found.append(hit)
        at = hit + len(tag)
    rest = text[at:]
    return found, max(n for n in range(len(tag)) if rest.endswith(tag[:n]))


@given(st.text("ab<", min_size=1, max_size=5), st.lists(st.text("ab<", max_size=7), max_size=8))
def test_tags_are_found_wherever_the_stream_is_cut(tag: str, texts: list[str]) -> None:
    pieces = [text.encode() for text in texts]
    assert scan_all(tag.encode(), pieces) == find_all(tag.encode(), b"".join(pieces))


def test_a_tag_that_repeats_its_own_start_is_not_missed() -> None:
    assert scan_all(b"aab", [b"a", b"a", b"a", b"b"]) == ([1], 0)


def test_an_empty_tag_is_never_found() -> None:
    assert ByteMatcher(b"").scan(b"anything") is None
