"""How terms and text are made alike, character by character: case folded, compatibility decomposed, lookalikes of other
scripts as Latin letters, decimal digits of every script as 0 to 9.

Decomposing (not composing) makes the folding of a character independent of its neighbours, so it works on a stream.
What composition would have said is kept by two rules: a term's marks are accepted in any order, and a match does not
count when the next character composes with its last one (the term `cafe` is no match in `café`, however it is spelled).
Characters that show nothing (soft hyphen, zero-width space and joiners, variation selectors) and marks that make no
letter of their own (strokes and rings laid over it) fold to nothing.
"""

from __future__ import annotations

import itertools
import sys
import unicodedata
from functools import cache, lru_cache

from gateway.postprocess.safety.lookalikes import LOOKALIKES

_SINGLE = (0xAD, 0x34F, 0x61C, 0x180E, 0xFEFF)
_RANGES = (
    range(0x200B, 0x2010),
    range(0x202A, 0x202F),
    range(0x2060, 0x2070),
    range(0xFE00, 0xFE10),
    range(0xE0000, 0xE01F0),
)
_INVISIBLE = frozenset(map(chr, itertools.chain(_SINGLE, *_RANGES)))


class Folding(dict[str, str]):
    """Character -> folded text, filled as characters are met (at most one entry per code point).

    `lookalikes`: letters of other scripts count as the Latin ones they look like. `accents`: marks make other letters;
    without, they fold to nothing.
    """

    def __init__(self, *, lookalikes: bool = True, accents: bool = True) -> None:
        super().__init__()
        self._lookalikes = LOOKALIKES if lookalikes else {}
        self._accents = accents

    def __missing__(self, char: str) -> str:
        text = "" if char in _INVISIBLE else char
        for _ in range(2):  # folding can undo a decomposition and the other way round; twice is stable
            text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
        self[char] = folded = "".join(map(self._letter, text))
        return folded

    def _letter(self, char: str) -> str:
        if is_mark(char) and (not self._accents or char not in composing_marks()):
            return ""
        digit = unicodedata.decimal(char, None)
        return self._lookalikes.get(char, char) if digit is None else str(digit)

    def is_lookalike(self, char: str) -> bool:
        """Tell whether a character stands for a Latin letter that it is not."""
        return any(part in self._lookalikes for part in unicodedata.normalize("NFKD", char).casefold())

    def fold(self, text: str) -> str:
        """Return `text` as it is compared."""
        return unicodedata.normalize("NFKD", "".join(self[char] for char in text))


@cache
def folding(*, lookalikes: bool = True, accents: bool = True) -> Folding:
    """Return the folding of these properties, shared by all rules."""
    return Folding(lookalikes=lookalikes, accents=accents)


FOLDED = folding()


def folded_text(text: str) -> str:
    """Return text as the detectors' checks see it."""
    return "".join(FOLDED[char] for char in text)


@cache
def composing_marks() -> frozenset[str]:
    """Return the marks that make a letter of its own with some base or other mark."""
    marks: set[str] = set()
    for code in range(0xC0, sys.maxunicode + 1):
        if 0xAC00 <= code < 0xD7A4:  # Hangul syllables have no marks
            continue
        parts = unicodedata.decomposition(chr(code))
        if parts and parts[0] != "<":
            marks.update(part for part in unicodedata.normalize("NFD", chr(code)) if is_mark(part))
    return frozenset(marks)


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
