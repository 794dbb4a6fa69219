"""How terms and text are made alike: case folded and compatibility decomposed, character by character.

Decomposing (not composing) makes the folding of a character independent of its neighbours, so it works on a stream.
What composition would have said is kept by two rules: a term's marks are accepted in any order, and a match does not
count when the next character composes with its last one (the term `cafe` is no match in `café`, however it is spelled).
Characters that show nothing (soft hyphen, zero-width space and joiners, variation selectors) fold to nothing.
"""

from __future__ import annotations

import itertools
import unicodedata
from functools import lru_cache

_SINGLE = (0xAD, 0x34F, 0x61C, 0x180E, 0xFEFF)
_RANGES = (range(0x200B, 0x2010), range(0x202A, 0x202F), range(0x2060, 0x2070), range(0xFE00, 0xFE10))
_INVISIBLE = frozenset(map(chr, itertools.chain(_SINGLE, *_RANGES)))


class _Folded(dict[str, str]):
    """Character -> folded text, filled as characters are met (at most one entry per code point)."""

    def __missing__(self, char: str) -> str:
        text = "" if char in _INVISIBLE else char
        for _ in range(2):  # folding can undo a decomposition and the other way round; twice is stable
            text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
        self[char] = text
        return text


FOLDED = _Folded()


def fold(text: str) -> str:
    """Return `text` as it is compared."""
    return unicodedata.normalize("NFKD", "".join(FOLDED[char] for char in text))


def is_mark(char: str) -> bool:
    """Tell whether a folded character attaches to the one before it."""
    return unicodedata.combining(char) != 0


@lru_cache(maxsize=4096)
def composes(tail: str, following: str) -> bool:
    """Tell whether `following` would melt into `tail`, so that the text no longer contains `tail`."""
    alone = unicodedata.normalize("NFC", tail)
    return not unicodedata.normalize("NFC", tail + following).startswith(alone)


def clusters(folded: str) -> list[str]:
    """Cut folded text into base characters with what composes with them: marks, the later parts of Hangul syllables."""
    found: list[str] = []
    for char in folded:
        if found and (is_mark(char) or "\u1160" <= char <= "\u11ff"):
            found[-1] += char
        else:
            found.append(char)
    return found


def spellings(folded: str, *, limit: int) -> list[str] | None:
    """Return `folded` with every run of marks in every order, or None when there are more than `limit`."""
    choices: list[list[str]] = []
    total = 1
    for marks, chars in itertools.groupby(folded, is_mark):
        run = "".join(chars)
        if marks and len(run) > 6:
            return None
        orders = sorted({"".join(order) for order in itertools.permutations(run)}) if marks else [run]
        total *= len(orders)
        if total > limit:
            return None
        choices.append(orders)
    return ["".join(parts) for parts in itertools.product(*choices)]
