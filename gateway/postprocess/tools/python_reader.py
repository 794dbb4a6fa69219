"""Reads one call written as in Python, `name(key="value", other=[1, 2])`, and makes JSON of its arguments.

Values are JSON as templates write them, or Python as models do now and then: `'text'`, `True`, `None`, tuples. Texts
are passed on as they come, other values when they are whole.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.postprocess.tools.events import Arguments
from gateway.postprocess.tools.held_reader import HeldReader

_KEY = re.compile(r"""([^=,()\[\]{}"']{1,128})=""")
_KEY_SO_FAR = re.compile(r"""[^=,()\[\]{}"']{1,128}""")
_OPENS, _CLOSES = "([{", ")]}"
_ESCAPE = re.compile(r"u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.", re.DOTALL)
_SIMPLE = frozenset('"\\/bfnrt')
_SPECIAL = re.compile(r"""[\\"'\x00-\x1f]""")
_PART = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\w+|(?P<last>,)\s*(?=[\])}])|.""", re.DOTALL)
_WORDS = {"True": "true", "False": "false", "None": "null", "(": "[", ")": "]"}


class PythonReader(HeldReader):
    """Follows one call; start it behind the function's name and its parenthesis."""

    def __init__(self, name: str) -> None:
        super().__init__(name, self._between)
        self._at = 0  # of it, where a value that is no text was read to
        self._inside = ""  # what is open there: brackets, and a quote at the end
        self._quote = ""
        self._has_key = False

    @property
    def in_string(self) -> bool:
        """Tell whether the text stands inside a value."""
        return self._state in (self._text, self._other)

    def close(self) -> None:
        """Take the tag behind all calls: what has no parenthesis by then is not whole."""

    def break_off(self) -> None:
        """Leave a value out that is not whole when the text ends."""

    def _between(self) -> bool:
        self._held = self._held.lstrip(" \t\r\n,")
        key = _KEY.match(self._held)
        if self._held.startswith(")"):
            self._held = self._held[1:]
            self._say("}" if self._has_key else "{}")
            self.done = True
        elif key is not None:
            self._say(f"{', ' if self._has_key else '{'}{json.dumps(key[1].rstrip(), ensure_ascii=False)}: ")
            self._held, self._has_key, self._state = self._held[key.end() :], True, self._value
        elif _KEY_SO_FAR.fullmatch(self._held) or not self._held:
            return False
        else:  # what has no name says nothing
            self._held = self._held[1:]
        return True

    def _value(self) -> bool:
        self._held = self._held.lstrip()
        if self._held[:1] in ('"', "'"):
            self._quote, self._held, self._state = self._held[0], self._held[1:], self._text
            self._say('"')
        elif self._held:
            self._at, self._inside, self._state = 0, "", self._other
        return bool(self._held)

    def _text(self) -> bool:
        said, at = [], 0
        while found := _SPECIAL.search(self._held, at):
            said.append(self._held[at : found.start()])
            at = found.start()
            if self._held[at] == self._quote:
                self._say("".join(said) + '"')
                self._held, self._state = self._held[at + 1 :], self._between
                return True
            escape = _read_escape(self._held, at)
            if escape is None:
                break
            at += escape[0]
            said.append(escape[1])
        else:
            said.append(self._held[at:])
            at = len(self._held)
        self._say("".join(said))
        self._held = self._held[at:]
        return False

    def _other(self) -> bool:
        while self._at < len(self._held):
            char = self._held[self._at]
            quote = self._inside[-1:] if self._inside[-1:] in ('"', "'") else ""
            if quote and char == "\\":
                if self._at + 1 == len(self._held):
                    return False
                self._at += 1
            elif quote:
                self._inside = self._inside[:-1] if char == quote else self._inside
            elif char in "\"'" or char in _OPENS:
                self._inside += char
            elif not self._inside and char in ",)":
                self._say(as_json(self._held[: self._at].strip()))
                self._held, self._state = self._held[self._at :], self._between
                return True
            elif char in _CLOSES:
                self._inside = self._inside[:-1]
            self._at += 1
        return False

    def _say(self, piece: str) -> None:
        if piece:
            self.events.append(Arguments(piece))


def as_json(text: str) -> str:
    """Return a value as JSON: in its own words as far as they are JSON or have the same sense, else as a string."""
    written = _PART.sub(_part, text)
    try:
        json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return written


def _part(found: re.Match[str]) -> str:
    part = "" if found["last"] else found[0]
    if part[:1] and part[0] in "\"'" and len(part) > 1:
        return f'"{_in_json(part[1:-1])}"'
    return _WORDS.get(part, part)


def _in_json(text: str) -> str:
    """Return the inside of a whole Python string as that of a JSON string."""
    said, at = [], 0
    while found := _SPECIAL.search(text, at):
        said.append(text[at : found.start()])
        length, piece = _read_escape(text + " ", found.start()) or (1, "\\\\")
        said.append(piece)
        at = found.start() + length
    return "".join((*said, text[at:]))


def _read_escape(text: str, at: int) -> tuple[int, str] | None:
    """Return how long what stands at a character is that JSON may not have as it is, and it in JSON; None: go on."""
    char = text[at]
    if char != "\\":
        return 1, char if char == "'" else json.dumps(char)[1:-1]
    found = _ESCAPE.match(text, at + 1)
    if found is None or (found[0] in "ux" and len(text) - at < {"u": 6, "x": 4}[found[0]]):
        return None
    escape = found[0]
    if escape in _SIMPLE or (escape[0] == "u" and len(escape) > 1):
        return 1 + len(escape), "\\" + escape
    if escape[0] == "x" and len(escape) > 1:
        return 1 + len(escape), f"\\u00{escape[1:]}"
    return (2, escape if escape == "'" else "") if escape in "'\n" else (1, "\\\\")


def _refuse(name: str) -> Any:
    raise ValueError(name)
