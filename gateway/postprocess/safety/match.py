"""What the filter asks of a matcher, and what a word's edge is."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Match(NamedTuple):
    """`end`: index after the longest match, 0 if there is none. `open`: text to come could make or change a match."""

    end: int
    open: bool


NO_MATCH = Match(0, False)


class Matcher(Protocol):
    """Finds matches of one rule that start at a given character. `max_length` bounds what is ever held back."""

    max_length: int

    def may_start(self, char: str) -> bool:
        """Tell whether a match could start in this character."""
        ...

    def match(self, text: str, at: int, previous: str, *, final: bool) -> Match:
        """Return the longest match from `at`. `previous` is the character before, `final` says that no text follows."""
        ...


def is_word(char: str) -> bool:
    """Tell whether a character is part of a word."""
    return char.isalnum() or char == "_"


def starts_word(previous: str, char: str) -> bool:
    """Tell whether no word runs across the place between two characters; `previous` is empty at the text's start."""
    return not previous or not (is_word(previous) and is_word(char))


def ends_word(text: str, end: int) -> bool:
    """Tell whether no word runs across `end`."""
    return end >= len(text) or not (is_word(text[end - 1]) and is_word(text[end]))
