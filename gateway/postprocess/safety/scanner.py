"""Finds the matches of an automaton's rules in a stream: leftmost, then longest, then first in the file.

Text is walked once: what is held keeps the place where its walk stopped, so a long open match costs nothing again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.postprocess.safety.automaton import Automaton, Place
from gateway.postprocess.safety.folding import folded_text
from gateway.postprocess.safety.match import OTHER, kind
from gateway.postprocess.safety.rest import Swallowed
from gateway.postprocess.safety.rule import Finder


class Part(NamedTuple):
    """A decided stretch of text: `finder` is None where nothing matches. `goes_on`: more of the match before it."""

    text: str
    finder: Finder | None = None
    goes_on: bool = False


class _Walk:
    """The walk from character `start`: where it is, and the best match so far."""

    __slots__ = ("best", "end", "index", "place", "start")

    def __init__(self, place: Place, start: int) -> None:
        self.start = start
        self.place = place
        self.index = start + 1
        self.best: Finder | None = None
        self.end = 0

    def rebase(self) -> None:
        """Count from the start of the walk on: what is before it is let go."""
        self.index -= self.start
        self.end -= self.start
        self.start = 0


class Scanner:
    """One text at an automaton. `num_chars` counts the characters that are decided."""

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self._starts = automaton.starts[OTHER]  # of the next character that is no part of a walk
        self._held = ""
        self._walk: _Walk | None = None  # from the first held character
        self._swallowing: tuple[Finder, Swallowed] | None = None
        self.num_chars = 0

    @property
    def num_held(self) -> int:
        """Return how many characters are held back."""
        return len(self._held)

    def feed(self, text: str, *, final: bool) -> list[Part]:
        """Return decided stretches; a match of a rule that blocks is the last one."""
        parts: list[Part] = []
        text = self._held + text
        clear = self._swallow(text, 0, parts)
        walk = self._walk or self._begin(text, clear)
        self._walk = None
        while walk is not None:
            if self._go(walk, text, final=final):
                break
            best = walk.best
            if best is None:
                walk = self._begin(text, walk.start + 1)
                continue
            if clear < walk.start:
                parts.append(Part(text[clear : walk.start]))
            parts.append(Part(text[walk.start : walk.end], best))
            clear = walk.end
            if best.rule.action == "block":
                text = text[:clear]
                walk = None
                break
            self._starts = self._automaton.starts[kind(text[clear - 1])]
            if best.rest is not None:
                self._swallowing = (best, Swallowed())
                clear = self._swallow(text, clear, parts)
            walk = self._begin(text, clear)
        at = len(text) if walk is None else walk.start
        if clear < at:
            parts.append(Part(text[clear:at]))
        if walk is not None:
            walk.rebase()
            self._walk = walk
        self._held = text[at:]
        self.num_chars += at
        return parts

    def _begin(self, text: str, at: int) -> _Walk | None:
        """Return the walk from the next character that may begin a match."""
        starts = self._starts
        for index in range(at, len(text)):
            place, starts = starts[text[index]]
            if place is not None:
                self._starts = starts
                return _Walk(place, index)
        self._starts = starts
        return None

    def _go(self, walk: _Walk, text: str, *, final: bool) -> bool:
        """Walk on; returns whether more text could make or change the match."""
        place, index, end = walk.place, walk.index, len(text)
        while True:
            if place.decides:
                if index == end and place.open and not final:
                    break
                self._note(walk, place.ends_before(text[index - 1], text[index] if index < end else ""), text, index)
            if index == end:
                break
            following = place[text[index]]
            if following is None:
                return False
            place = following
            index += 1
        walk.place, walk.index = place, index
        return place.open and not final

    @staticmethod
    def _note(walk: _Walk, finders: Sequence[Finder], text: str, end: int) -> None:
        for finder in finders:
            if finder.check is None or finder.check(folded_text(text[walk.start : end])):
                walk.best, walk.end = finder, end
                return

    def _swallow(self, text: str, at: int, parts: list[Part]) -> int:
        if self._swallowing is None:
            return at
        finder, done = self._swallowing
        assert finder.rest is not None
        end, more = finder.rest.swallow(text, at, done)
        self._swallowing = (finder, more) if more is not None else None
        if end > at:
            parts.append(Part(text[at:end], finder, goes_on=True))
            self._starts = self._automaton.starts[kind(text[end - 1])]
        return end
