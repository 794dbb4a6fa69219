"""What the automaton asks of a matcher, and what may stand at the edges of a match."""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable
from functools import lru_cache
from typing import Literal, Protocol

MAX_INVISIBLE = 32  # in one match; without a limit, characters that show nothing could be held for ever

Edge = Literal["none", "word", "name", "digit"]

OTHER, LETTER, DIGIT, NAME = range(4)  # kinds of characters: no word, a letter of a word, a digit, an ASCII letter

_BARRED: dict[Edge, frozenset[int]] = {
    "none": frozenset(),
    "word": frozenset((LETTER, DIGIT, NAME)),
    "name": frozenset((DIGIT, NAME)),
    "digit": frozenset((DIGIT,)),
}


class Thread(Hashable, Protocol):
    """A match on its way. `accepts`: a match ends here. `asks`: whether it does depends on the character to come."""

    @property
    def accepts(self) -> bool:
        """Tell whether the text so far is a match, whatever follows."""
        ...

    @property
    def asks(self) -> bool:
        """Tell whether the text so far is a match if the right text follows."""
        ...

    @property
    def goes_on(self) -> bool:
        """Tell whether a longer match could come of it."""
        ...


class Matcher(Protocol):
    """Finds matches of one rule. `max_length` bounds what is ever held back for it."""

    max_length: int

    def first(self, char: str) -> Thread | None:
        """Return the thread of a match that begins in this character, if one can."""
        ...

    def step(self, thread: Thread, char: str) -> Thread | None:
        """Return the thread with one more character, or None if no match contains it."""
        ...

    def confirms(self, thread: Thread, following: str) -> bool:
        """Tell whether a match that `asks` stands; `following` is the next character, empty at the text's end."""
        ...


@lru_cache(maxsize=1 << 16)
def kind(char: str) -> int:
    """Return which kind of character this is; empty (the text's edge) is OTHER."""
    if not char or not (char.isalnum() or char == "_"):
        return OTHER
    if unicodedata.decimal(char, None) is not None:
        return DIGIT
    plain = unicodedata.normalize("NFKD", char)
    return NAME if plain.isascii() and plain.isalpha() else LETTER


def apart(edge: Edge, left: int, right: int) -> bool:
    """Tell whether a match of this edge may begin or end between two kinds of characters."""
    barred = _BARRED[edge]
    return left not in barred or right not in barred
