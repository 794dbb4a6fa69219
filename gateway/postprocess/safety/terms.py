"""Finds terms in text: one trie over folded characters for all terms of a rule.

A trie walked from each character of the text serves better here than Aho-Corasick: text falls off it after a step or
two, the longest match from a position is what the filter asks for, and the walk says whether the text ends inside it.
(pyahocorasick finds matches of a whole text faster, but cannot say what is open at its end.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gateway.postprocess.safety.folding import FOLDED, Folding, clusters, composes, is_mark, spellings
from gateway.postprocess.safety.match import MAX_INVISIBLE, Thread

_MAX_SPELLINGS = 256


class _Node:
    __slots__ = ("next", "tail")

    def __init__(self) -> None:
        self.next: dict[str, _Node] = {}
        self.tail = ""  # last character with its marks of the term that ends here; empty: none does


class TermThread(NamedTuple):
    """Where in the trie a match may stand.

    `ended`: a term ended inside the last character, so what follows cannot change it. `tails`: ends of terms that the
    next character could melt into. `mapped`: the last letter is a lookalike; its marks make no other Latin letter.
    """

    nodes: frozenset[_Node]
    num_invisible: int
    ended: bool
    tails: frozenset[str]
    mapped: bool

    @property
    def accepts(self) -> bool:
        """Tell whether a term ended here, whatever follows."""
        return self.ended

    @property
    def asks(self) -> bool:
        """Tell whether a term ends here unless a mark follows."""
        return bool(self.tails)

    @property
    def goes_on(self) -> bool:
        """Tell whether a longer term begins like this."""
        return any(node.next for node in self.nodes)


class TermMatcher:
    """The terms of one rule. Raises ValueError for a term that cannot be matched."""

    def __init__(self, terms: Iterable[str], folded: Folding = FOLDED) -> None:
        self._root = _Node()
        self._folded = folded
        self.max_length = 0
        for term in terms:
            self._add(term)

    def _add(self, term: str) -> None:
        folded = self._folded.fold(term)
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

    def first(self, char: str) -> TermThread | None:
        """Return the thread of terms that begin in this character, or inside it (ligatures)."""
        folded = self._folded[char]
        return self._advance([(self._root, offset) for offset in range(len(folded))], char, 0, mapped=False)

    def step(self, thread: Thread, char: str) -> TermThread | None:
        """Return the thread with one more character."""
        assert isinstance(thread, TermThread)
        if self._folded[char]:
            starts = [(node, 0) for node in thread.nodes]
            return self._advance(starts, char, thread.num_invisible, mapped=thread.mapped)
        if thread.num_invisible == MAX_INVISIBLE or not thread.goes_on:
            return None
        return thread._replace(num_invisible=thread.num_invisible + 1, ended=False, tails=frozenset())

    def confirms(self, thread: Thread, following: str) -> bool:
        """Tell whether a term ends before `following`: it does not if that melts into its last letter."""
        assert isinstance(thread, TermThread)
        after = self._folded[following][:1] if following else ""
        return not after or thread.mapped or any(not composes(tail, after) for tail in thread.tails)

    def _advance(
        self, starts: list[tuple[_Node, int]], char: str, num_invisible: int, *, mapped: bool
    ) -> TermThread | None:
        folded = self._folded[char]
        if folded and not is_mark(folded[0]):
            mapped = self._folded.is_lookalike(char)
        nodes: set[_Node] = set()
        ended = False
        for node, offset in starts:
            for found, following in _walk(node, folded[offset:]):
                if not following:
                    nodes.add(found)
                elif found.tail and (mapped or not composes(found.tail, following)):
                    ended = True
        if not nodes and not ended:
            return None
        tails = frozenset(node.tail for node in nodes if node.tail)
        return TermThread(frozenset(nodes), num_invisible, ended, tails, mapped)


def _walk(node: _Node, chars: str) -> Iterator[tuple[_Node, str]]:
    """Yield each node on the way with the character that follows there, empty at the last one."""
    for at, char in enumerate(chars):
        found = node.next.get(char)
        if found is None:
            return
        node = found
        yield node, chars[at + 1 : at + 2]
