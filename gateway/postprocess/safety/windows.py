"""Cuts a growing text into windows for the rules that judge: at the end of a sentence, or at a bound if none comes.

Where it cuts depends on the text alone, not on how it came, so streamed and whole replies are judged alike.
"""

from __future__ import annotations

_ENDS = frozenset(".!?…。！？।\n")
_LEAST = 20  # shorter sentences ("1.", "e.g.") are judged with what follows


class Cutter:
    """The windows of one text, `max_chars` long at most."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._length = 0  # of the window that is open
        self._ended = False  # its last character ends a sentence

    def restart(self) -> None:
        """Begin a window with the next character."""
        self._length = 0

    def cut(self, text: str) -> list[tuple[str, bool]]:
        """Return the pieces of `text`; True with a piece: a window ends behind it."""
        pieces: list[tuple[str, bool]] = []
        start = 0
        for at, char in enumerate(text):
            if self._length and ((self._ended and char.isspace()) or self._length >= self._max_chars):
                pieces.append((text[start:at], True))
                start = at
                self._length = 0
            self._length += 1
            self._ended = self._length >= _LEAST and (char in _ENDS or (self._ended and char in "\"')]»”’"))
        if start < len(text):
            pieces.append((text[start:], False))
        return pieces


def windows(text: str, max_chars: int) -> list[str]:
    """Return the windows of a whole text; joined they are the text."""
    found: list[str] = []
    begun = ""
    for piece, ends in Cutter(max_chars).cut(text):
        begun += piece
        if ends:
            found.append(begun)
            begun = ""
    return [*found, begun] if begun else found
