"""Finds a pattern in text: a finite automaton, made deterministic as text is met.

Not `regex` with partial=True: its partial match misses open matches of nested repeats (regex 2026.11.19 says that
`(?:(?:b){1,2}(?:.|[ab])){0,2}(?!)` cannot go on after `bbc`), and a filter that misses one leaks it. An automaton
also takes linear time for every pattern. Each state is the set of places in the pattern where a match may stand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gateway.postprocess.safety.folding import FOLDED, Folding
from gateway.postprocess.safety.match import MAX_INVISIBLE, Thread
from gateway.postprocess.safety.syntax import Chars, Choice, Repeat, Tree, lengths, parse

_MAX_PLACES = 4096
_MAX_STEPS = 50_000  # remembered transitions; past that the memory is emptied and filled again

_ACCEPT = 0


class _Places:
    """The pattern as a graph: from each place, tests to further places or free steps."""

    def __init__(self) -> None:
        self.tests: list[tuple[Callable[[str], bool], int] | None] = [None]
        self.free: list[tuple[int, ...]] = [()]

    def _add(self, test: tuple[Callable[[str], bool], int] | None, free: tuple[int, ...] = ()) -> int:
        if len(self.tests) >= _MAX_PLACES:
            raise ValueError(f"it is too large: repeats unfold to more than {_MAX_PLACES} places")
        self.tests.append(test)
        self.free.append(free)
        return len(self.tests) - 1

    def build(self, tree: Tree, then: int) -> int:
        """Add a tree that goes on at `then`; returns where it starts."""
        if isinstance(tree, Chars):
            return self._add((tree.accepts, then))
        if isinstance(tree, Choice):
            return self._add(None, tuple(self.build(option, then) for option in tree.options))
        if isinstance(tree, Repeat):
            start = then
            for n in range(tree.most):
                body = self.build(tree.body, start)
                start = body if n >= tree.most - tree.least else self._add(None, (body, then))
            return start
        for part in reversed(tree.parts):
            then = self.build(part, then)
        return then

    def closure(self, places: set[int]) -> frozenset[int]:
        """Return the places reached without a character, those that test one or accept."""
        seen: set[int] = set()
        stack = list(places)
        while stack:
            place = stack.pop()
            if place not in seen:
                seen.add(place)
                stack.extend(self.free[place])
        return frozenset(place for place in seen if place == _ACCEPT or self.tests[place])


class PatternThread:
    """A set of places in the pattern: a state of the automaton, the same object whenever it is met."""

    __slots__ = ("accepts", "goes_on", "next", "places")
    asks = False

    def __init__(self, places: frozenset[int]) -> None:
        self.places = places
        self.accepts = _ACCEPT in places
        self.goes_on = bool(places - {_ACCEPT})
        self.next: dict[str, PatternThread | None] = {}


class PatternMatcher:
    """One pattern. Raises ValueError for a pattern that cannot be matched in a stream."""

    def __init__(self, pattern: str) -> None:
        tree = parse(pattern)
        self.max_length = lengths(tree)[1]
        self._places = _Places()
        self._first = self._places.closure({self._places.build(tree, _ACCEPT)})
        self._forget()

    def _forget(self) -> None:
        self._threads: dict[frozenset[int], PatternThread] = {}
        self._num_steps = 0
        self._start = self._thread(self._first)

    def _thread(self, places: frozenset[int]) -> PatternThread:
        found = self._threads.get(places)
        if found is None:
            found = self._threads[places] = PatternThread(places)
        return found

    def first(self, char: str) -> PatternThread | None:
        """Return the thread of a match that begins in this character."""
        return self.step(self._start, char)

    def step(self, thread: Thread, char: str) -> PatternThread | None:
        """Return the thread with one more character."""
        assert isinstance(thread, PatternThread)
        if char in thread.next:
            return thread.next[char]
        tests = [self._places.tests[place] for place in thread.places]
        reached = self._places.closure({test[1] for test in tests if test is not None and test[0](char)})
        if self._num_steps >= _MAX_STEPS:
            self._forget()
        following = self._thread(reached) if reached else None
        thread.next[char] = following
        self._num_steps += 1
        return following

    def confirms(self, thread: Thread, following: str) -> bool:
        """A pattern's matches do not depend on what follows."""
        del following
        return thread.accepts


class FoldedThread(NamedTuple):
    """A thread of a pattern over folded text. `fresh`: the last character showed something."""

    inner: PatternThread
    num_invisible: int
    fresh: bool

    @property
    def accepts(self) -> bool:
        """Tell whether the text so far is a match."""
        return self.fresh and self.inner.accepts

    @property
    def asks(self) -> bool:
        """Nothing depends on what follows."""
        return False

    @property
    def goes_on(self) -> bool:
        """Tell whether a longer match could come of it."""
        return self.inner.goes_on


class FoldedPatternMatcher:
    """A pattern over folded text: of full-width digits, with invisible characters between, and so on."""

    def __init__(self, pattern: str, folded: Folding = FOLDED) -> None:
        self._pattern = PatternMatcher(pattern)
        self._folded = folded
        self.max_length = self._pattern.max_length + MAX_INVISIBLE

    def first(self, char: str) -> FoldedThread | None:
        """Return the thread of a match that begins with this character."""
        folded = self._folded[char]
        found = self._pattern.first(folded[0]) if folded else None
        return self._go(found, folded[1:], 0)

    def step(self, thread: Thread, char: str) -> FoldedThread | None:
        """Return the thread with one more character."""
        assert isinstance(thread, FoldedThread)
        folded = self._folded[char]
        if folded:
            return self._go(thread.inner, folded, thread.num_invisible)
        if thread.num_invisible == MAX_INVISIBLE or not thread.goes_on:
            return None
        return FoldedThread(thread.inner, thread.num_invisible + 1, False)

    def confirms(self, thread: Thread, following: str) -> bool:
        """A pattern's matches do not depend on what follows."""
        del following
        return thread.accepts

    def _go(self, inner: PatternThread | None, chars: str, num_invisible: int) -> FoldedThread | None:
        for char in chars:
            if inner is None:
                return None
            inner = self._pattern.step(inner, char)
        return FoldedThread(inner, num_invisible, True) if inner is not None else None
