"""Finds a pattern in text: a finite automaton, made deterministic as text is met.

Not `regex` with partial=True: its partial match misses open matches of nested repeats (regex 2026.11.19 says that
`(?:(?:b){1,2}(?:.|[ab])){0,2}(?!)` cannot go on after `bbc`), and a filter that misses one leaks it. An automaton
also takes linear time for every pattern. Each state is the set of places in the pattern where a match may stand.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.postprocess.safety.match import NO_MATCH, Match, ends_word, starts_word
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


class _State:
    __slots__ = ("accepts", "goes_on", "next", "places")

    def __init__(self, places: frozenset[int]) -> None:
        self.places = places
        self.accepts = _ACCEPT in places
        self.goes_on = bool(places - {_ACCEPT})
        self.next: dict[str, _State | None] = {}


class PatternMatcher:
    """One pattern. Raises ValueError for a pattern that cannot be matched in a stream."""

    def __init__(self, pattern: str, *, whole_words: bool = False) -> None:
        tree = parse(pattern)
        self.max_length = lengths(tree)[1]
        self._whole_words = whole_words
        self._places = _Places()
        self._first = self._places.closure({self._places.build(tree, _ACCEPT)})
        self._forget()

    def _forget(self) -> None:
        self._states: dict[frozenset[int], _State] = {}
        self._num_steps = 0
        self._start = self._state(self._first)

    def _state(self, places: frozenset[int]) -> _State:
        found = self._states.get(places)
        if found is None:
            found = self._states[places] = _State(places)
        return found

    def _step(self, state: _State, char: str) -> _State | None:
        if char in state.next:
            return state.next[char]
        tests = [self._places.tests[place] for place in state.places]
        reached = self._places.closure({test[1] for test in tests if test is not None and test[0](char)})
        if self._num_steps >= _MAX_STEPS:
            self._forget()
        following = self._state(reached) if reached else None
        state.next[char] = following
        self._num_steps += 1
        return following

    def may_start(self, char: str) -> bool:
        """Tell whether a match could start in this character."""
        return self._step(self._start, char) is not None

    def match(self, text: str, at: int, previous: str, *, final: bool) -> Match:
        """Return the longest match from `at`, and whether more text could change that."""
        if self._whole_words and not starts_word(previous, text[at]):
            return NO_MATCH
        best = 0
        state = self._start
        for index in range(at, len(text)):
            following = self._step(state, text[index])
            if following is None:
                return Match(best, False)
            state = following
            if state.accepts and (not self._whole_words or ends_word(text, index + 1)):
                best = index + 1
        undecided = state.goes_on or (state.accepts and self._whole_words)
        return Match(best, undecided and not final)
