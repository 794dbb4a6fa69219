"""All rules of a direction as one automaton, made deterministic as text is met.

A walk from one character of the text costs one dictionary look-up a character, however many rules there are: a `Place`
is the set of threads of all rules that are alive after the same text, and it remembers which place each character leads
to. Most characters begin nothing and cost one look-up in all.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.postprocess.safety.match import Thread, apart, kind
from gateway.postprocess.safety.rule import Finder

_MAX_STEPS = 50_000  # remembered transitions; past that the memory is emptied and filled again

Threads = tuple[tuple[Finder, Thread], ...]


class Place(dict[str, "Place | None"]):
    """Where some matches may stand; as a dictionary, where each next character leads (None: nowhere).

    `ends`: rules of which a match ends here, in the order of the file. `asks`: threads that end here only if the right
    character follows. `open`: text to come could make or change a match. `decides`: there are `ends` or `asks`.
    """

    __slots__ = ("_automaton", "_threads", "asks", "decides", "ends", "open")

    def __init__(self, automaton: Automaton, threads: Threads, char: str) -> None:
        super().__init__()
        self._automaton = automaton
        self._threads = threads
        bounded = [(finder, thread, not apart(finder.after, kind(char), kind(char))) for finder, thread in threads]
        self.ends = tuple(finder for finder, thread, edged in bounded if thread.accepts and not edged)
        self.asks = tuple(
            (finder, thread) for finder, thread, edged in bounded if thread.asks or (thread.accepts and edged)
        )
        self.decides = bool(self.ends or self.asks)
        self.open = bool(self.asks) or any(thread.goes_on for _, thread in threads)

    def __missing__(self, char: str) -> Place | None:
        stepped = ((finder, finder.matcher.step(thread, char)) for finder, thread in self._threads)
        found = self._automaton.place(tuple((finder, thread) for finder, thread in stepped if thread is not None), char)
        self[char] = found
        return found

    def ends_before(self, last: str, following: str) -> list[Finder]:
        """Return the rules of which a match ends here if `following` comes next (empty: the text ends)."""
        left, right = kind(last), kind(following)
        confirmed = [
            finder
            for finder, thread in self.asks
            if apart(finder.after, left, right) and (thread.accepts or finder.matcher.confirms(thread, following))
        ]
        return sorted([*self.ends, *confirmed], key=_order) if confirmed else list(self.ends)


class Starts(dict[str, "tuple[Place | None, Starts]"]):
    """Character -> where it leads as the first one of a match, and the Starts for the character after it.

    There is one for each kind of character that may stand before.
    """

    __slots__ = ("_automaton", "_before")

    def __init__(self, automaton: Automaton, before: int) -> None:
        super().__init__()
        self._automaton = automaton
        self._before = before

    def __missing__(self, char: str) -> tuple[Place | None, Starts]:
        found = (self._automaton.first(self._before, char), self._automaton.starts[kind(char)])
        self[char] = found
        self._automaton.note_step()
        return found


class Automaton:
    """The rules of one direction that act on text, or those that only note it."""

    def __init__(self, finders: Sequence[Finder]) -> None:
        self._finders = tuple(finders)
        self.max_length = max((finder.matcher.max_length for finder in finders), default=0)
        self._forget()

    def _forget(self) -> None:
        self._num_steps = 0
        self._places: dict[tuple[Threads, bool | int], Place] = {}
        self.starts = tuple(Starts(self, before) for before in range(4))

    def note_step(self) -> None:
        """Count a remembered transition; old ones are let go in time (texts at work keep the places they are at)."""
        self._num_steps += 1
        if self._num_steps > _MAX_STEPS:
            self._forget()

    def first(self, before: int, char: str) -> Place | None:
        """Return where a match may stand after its first character."""
        after = kind(char)
        possible = (
            (finder, finder.matcher.first(char)) for finder in self._finders if apart(finder.edge, before, after)
        )
        return self.place(tuple((finder, thread) for finder, thread in possible if thread is not None), char)

    def place(self, threads: Threads, char: str) -> Place | None:
        """Return the place of these threads after `char`; None if there are none."""
        if not threads:
            return None
        key = (threads, kind(char))
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = Place(self, threads, char)
        self.note_step()
        return found


def _order(finder: Finder) -> int:
    return finder.order
