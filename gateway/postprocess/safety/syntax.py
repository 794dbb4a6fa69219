"""Parses the patterns that a policy may hold: regular expressions in Python's spelling with a longest possible match.

Allowed: literals, `.`, classes, groups, alternation, `?` and `{m,n}`, `(?i)` and `(?s)` at the start. Refused, each
with a message that says what to write instead: `*`, `+`, `{m,}` (no finite maximum, so no bound on what the filter must
hold back), look-around, anchors, `\\b` and back-references (they need text outside the match; `whole_words` serves).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import NamedTuple

MAX_LENGTH = 512
_REPEAT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>)?(?!\?)")
_CLASS = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[dDwWsSntrfv]|[^a-zA-Z0-9])",
    re.DOTALL,
)


class Chars(NamedTuple):
    """One character that passes a test."""

    accepts: Callable[[str], bool]


class Sequence(NamedTuple):
    """Parts one after another."""

    parts: tuple[Tree, ...]


class Choice(NamedTuple):
    """One of several."""

    options: tuple[Tree, ...]


class Repeat(NamedTuple):
    """Between `least` and `most` times the body."""

    body: Tree
    least: int
    most: int


Tree = Chars | Sequence | Choice | Repeat


def lengths(tree: Tree) -> tuple[int, int]:
    """Return the least and the greatest number of characters of a match."""
    if isinstance(tree, Chars):
        return 1, 1
    if isinstance(tree, Repeat):
        least, most = lengths(tree.body)
        return least * tree.least, most * tree.most
    if isinstance(tree, Choice):
        bounds = [lengths(option) for option in tree.options]
        return min(low for low, _ in bounds), max(high for _, high in bounds)
    bounds = [lengths(part) for part in tree.parts]
    return sum(low for low, _ in bounds), sum(high for _, high in bounds)


def parse(pattern: str) -> Tree:
    """Return the tree of a pattern. Raises ValueError that says what is wrong and what to write instead."""
    parser = _Parser(pattern)
    tree = parser.choice()
    if parser.at < len(pattern):
        raise ValueError(f"a ')' at {parser.at} closes nothing")
    least, most = lengths(tree)
    if least == 0:
        raise ValueError("it matches the empty text")
    if most > MAX_LENGTH:
        raise ValueError(f"it can match {most} characters; at most {MAX_LENGTH} are allowed")
    return tree


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._flags = re.RegexFlag(0)
        self._depth = 0
        self.at = 0
        head = re.match(r"\(\?([is]+)\)", pattern)
        if head:
            self.at = head.end()
            self._flags |= re.IGNORECASE if "i" in head[1] else 0
            self._flags |= re.DOTALL if "s" in head[1] else 0

    def _peek(self) -> str:
        return self._pattern[self.at : self.at + 1]

    def choice(self) -> Tree:
        options = [self._sequence()]
        while self._peek() == "|":
            self.at += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Tree:
        parts: list[Tree] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._quantified(self._atom()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _quantified(self, body: Tree) -> Tree:
        sign = self._peek()
        if sign in ("*", "+") and sign:
            raise ValueError(f"{sign!r} at {self.at} has no finite maximum; write {{0,64}} or the like")
        if sign == "?":
            self.at += 1
            tree: Tree = Repeat(body, 0, 1)
        elif sign == "{":
            tree = self._counted(body)
        else:
            return body
        if self._peek() in ("?", "+", "*", "{") and self._peek():
            raise ValueError(f"{self._peek()!r} at {self.at} follows a repetition; matches are always the longest ones")
        return tree

    def _counted(self, body: Tree) -> Tree:
        found = _REPEAT.match(self._pattern, self.at)
        if not found or not (found[1] or found[3]):
            raise ValueError(f"'{{' at {self.at} begins no {{m,n}}; write \\{{ for the sign itself")
        if found[2] and not found[3]:
            raise ValueError(f"{found[0]} has no finite maximum; write {{{found[1]},64}} or the like")
        self.at = found.end()
        least = int(found[1] or 0)
        most = int(found[3]) if found[2] else least
        if most < least or most > MAX_LENGTH:
            raise ValueError(f"{found[0]} must have its smaller number first and repeat at most {MAX_LENGTH} times")
        return Repeat(body, least, most)

    def _atom(self) -> Tree:
        char = self._peek()
        if char == "(":
            return self._group()
        if char == "[":
            return self._class()
        if char == "\\":
            return self._escape()
        if char in "^$":
            raise ValueError(f"{char!r} at {self.at} is not possible in a stream; use whole_words = true for words")
        if char in "*+?{":
            raise ValueError(f"{char!r} at {self.at} repeats nothing")
        self.at += 1
        return self._chars(char if char == "." else re.escape(char))

    def _group(self) -> Tree:
        head = _GROUP.match(self._pattern, self.at)
        if not head:
            sign = self._pattern[self.at : self.at + 3]
            raise ValueError(f"{sign!r} at {self.at}: look-around is not possible in a stream")
        self.at = head.end()
        self._depth += 1
        if self._depth > 50:
            raise ValueError("groups are nested more than 50 deep")
        tree = self.choice()
        if self._peek() != ")":
            raise ValueError("a '(' is not closed")
        self.at += 1
        self._depth -= 1
        return tree

    def _class(self) -> Tree:
        found = _CLASS.match(self._pattern, self.at)
        if not found:
            raise ValueError(f"the '[' at {self.at} is not closed")
        self.at = found.end()
        return self._chars(found[0])

    def _escape(self) -> Tree:
        found = _ESCAPE.match(self._pattern, self.at)
        if not found:
            raise ValueError(
                f"{self._pattern[self.at : self.at + 2]!r} at {self.at} is not possible in a stream; "
                "use whole_words = true for words"
            )
        self.at = found.end()
        return self._chars(found[0])

    def _chars(self, source: str) -> Chars:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                return Chars(_tester(re.compile(source, self._flags)))
        except (re.error, FutureWarning) as error:
            raise ValueError(f"{source!r}: {error}") from None


def _tester(compiled: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda char: compiled.fullmatch(char) is not None
