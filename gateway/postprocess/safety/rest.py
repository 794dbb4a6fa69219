"""Swallows what belongs to a match that is already decided: the rest of a token, the body of a private key."""

from __future__ import annotations

import re
from typing import NamedTuple

from gateway.postprocess.safety.folding import FOLDED

_DENSE = 20  # a line of a key has longer stretches without a space than prose has
_SPARSE = 200  # so many characters without a dense stretch are no key any more
_MARK_LENGTH = 80  # characters kept to find the mark that ends a body, over any split


class Swallowed(NamedTuple):
    """How far the swallowing of one match has come.

    `run` is the length of the stretch without a space at the end, `sparse` how long ago the last dense one was.
    """

    num_chars: int = 0
    tail: str = ""
    run: int = 0
    sparse: int = 0


class Rest:
    """Characters (folded) of which any number up to `limit` belong to a match.

    `until` ends them, itself included; with it, text that looks like prose ends them too.
    """

    def __init__(self, chars: str, *, limit: int, until: str = "") -> None:
        self._chars = frozenset(chars)
        self._limit = limit
        self._until = re.compile(until + r"\Z") if until else None

    def swallow(self, text: str, at: int, done: Swallowed) -> tuple[int, Swallowed | None]:
        """Return the end of what belongs to the match from `at` on, and how to go on if the text's end is inside it."""
        num_chars, tail, run, sparse = done
        while at < len(text):
            folded = FOLDED[text[at]]
            if num_chars >= self._limit or sparse > _SPARSE or any(char not in self._chars for char in folded):
                return at, None
            at += 1
            num_chars += 1
            if self._until is not None:
                tail = (tail + folded)[-_MARK_LENGTH:]
                run = 0 if folded.isspace() else run + 1
                sparse = 0 if run >= _DENSE else sparse + 1
                if folded == "-" and self._until.search(tail):
                    return at, None
        return at, Swallowed(num_chars, tail, run, sparse)
