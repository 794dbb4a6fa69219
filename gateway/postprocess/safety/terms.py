"""Finds terms in text: one trie over folded characters for all terms of a rule.

A trie walked from each character of the text serves better here than Aho-Corasick: text falls off it after a step or
two, the longest match from a position is what the filter asks for, and the walk says whether the text ends inside it.
The cost is at most the longest term for each character of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.postprocess.safety.folding import FOLDED, clusters, composes, fold, is_mark, spellings
from gateway.postprocess.safety.match import NO_MATCH, Match, ends_word, starts_word

MAX_INVISIBLE = 32  # in one match; without a limit, invisible characters could be held for ever
_MAX_SPELLINGS = 256


class _Node:
    __slots__ = ("next", "tail")

    def __init__(self) -> None:
        self.next: dict[str, _Node] = {}
        self.tail = ""  # last character with its marks of the term that ends here; empty: none does


class TermMatcher:
    """The terms of one rule. Raises ValueError for a term that cannot be matched."""

    def __init__(self, terms: Iterable[str], *, whole_words: bool = False) -> None:
        self._root = _Node()
        self._whole_words = whole_words
        self.max_length = 0
        for term in terms:
            self._add(term)

    def _add(self, term: str) -> None:
        folded = fold(term)
        if not folded or is_mark(folded[0]):
            raise ValueError(f"the term {term!r} has no visible text, or begins with a combining mark")
        variants = spellings(folded, limit=_MAX_SPELLINGS)
        if variants is None:
            raise ValueError(f"the term {term!r} has too many combining marks")
        self.max_length = max(self.max_length, len(folded) + MAX_INVISIBLE)
        for variant in variants:
            node = self._root
            for char in variant:
                node = node.next.setdefault(char, _Node())
            node.tail = clusters(variant)[-1]

    def may_start(self, char: str) -> bool:
        """Tell whether a match could start in this character."""
        return any(part in self._root.next for part in FOLDED[char])

    def match(self, text: str, at: int, previous: str, *, final: bool) -> Match:
        """Return the longest match that starts in the character `at`, and whether more text could change that."""
        if self._whole_words and not starts_word(previous, text[at]):
            return NO_MATCH
        best, open_ = 0, False
        for offset in range(len(FOLDED[text[at]])):
            for index, tail, following in self._walk(text, at, offset):
                if not final and (following is None or (self._whole_words and index == len(text))):
                    open_ = True
                elif not tail or (following and composes(tail, following)):
                    continue
                elif not self._whole_words or ends_word(text, index):
                    best = max(best, index)
        return Match(best, open_)

    def _walk(self, text: str, at: int, offset: int) -> Iterator[tuple[int, str, str | None]]:
        """Yield (end in the text, tail, following folded character) where a term ends, and once where the text does."""
        node = self._root
        index = at
        num_invisible = 0
        folded = FOLDED[text[at]][offset:]
        while num_invisible <= MAX_INVISIBLE:
            for k, char in enumerate(folded):
                found = node.next.get(char)
                if found is None:
                    return
                node = found
                if node.tail:
                    yield index + 1, node.tail, folded[k + 1] if k + 1 < len(folded) else _following(text, index + 1)
            index += 1
            if index == len(text):
                if node.next:
                    yield index, "", None
                return
            folded = FOLDED[text[index]]
            num_invisible += not folded


def _following(text: str, at: int) -> str | None:
    """Return the folded character at `at` (empty for an invisible one), or None at the text's end."""
    return FOLDED[text[at]][:1] if at < len(text) else None
