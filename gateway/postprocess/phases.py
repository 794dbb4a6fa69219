"""Splits the bytes of a choice into reasoning and answer, as the engine marked them; tags are shown to nobody.

One rule for newlines, since templates put them round the tags: the run of newlines just inside a think tag belongs to
the tag, and so does the run after a close tag. All other text is passed on as it is. Newlines at the end of reasoning
are therefore held until it is known whether the close tag follows; if the text ends first they are reasoning.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from wire.messages import ANSWER, MARKUP, REASONING, PhaseMark


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Bytes of one phase (ANSWER or REASONING). `starts`: a tag lies between these bytes and the ones before."""

    phase: int
    raw: bytes
    starts: bool


def segments(raw: bytes, phase: int, marks: Iterable[PhaseMark]) -> list[tuple[int, bytes]]:
    """Cut one token's bytes at its marks; `phase` holds before the first mark.

    Offsets may lie past the bytes: the engine counts the text of a special token, which has no bytes here.
    """
    found: list[tuple[int, bytes]] = []
    start = 0
    for mark in marks:
        if mark.offset:
            found.append((phase, raw[start : mark.offset]))
        start, phase = mark.offset, mark.phase
    found.append((phase, raw[start:]))
    return found


class PhaseSplitter:
    """Applies the newline rule, and SentencePiece's first-space rule, to a choice's stream of (phase, bytes)."""

    def __init__(self, *, strips_first_space: bool = False) -> None:
        self._phase = ANSWER
        self._starts = False
        self._at_newlines = False
        self._at_first_space = strips_first_space
        self._held = b""

    def feed(self, phase: int, raw: bytes) -> Piece | None:
        """Return what the next bytes let go, if anything."""
        if not raw:  # a special token: it has no text, and says nothing about the phase of what comes
            return None
        if self._at_first_space:
            self._at_first_space = False
            raw = raw.removeprefix(b" ")
        if phase != self._phase:
            self._phase, self._starts, self._held = phase, True, b""
            self._at_newlines = True
        if phase == MARKUP:
            return None
        if self._at_newlines:
            raw = raw.lstrip(b"\n")
            self._at_newlines = not raw
        if phase == REASONING:
            raw = self._held + raw
            shown = raw.rstrip(b"\n")
            raw, self._held = shown, raw[len(shown) :]
        if not raw:
            return None
        starts, self._starts = self._starts, False
        return Piece(phase, raw, starts)

    def close(self) -> Piece | None:
        """Return what is held when the text ends."""
        held, self._held = self._held, b""
        return Piece(REASONING, held, False) if held else None
