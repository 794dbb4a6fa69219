"""Reads one call, a JSON object such as {"name": "f", "arguments": {...}}, as its characters come.

Arguments are passed on as the model wrote them, once the name is known; only strings and brackets are followed, so
broken JSON comes through as it is. Arguments given as a string of JSON are unescaped; none, or null, are `{}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

from gateway.postprocess.tools.events import Arguments, CallBegin, Event

_ARGUMENTS = frozenset({"arguments", "parameters"})
_KEYS = _ARGUMENTS | {"name", "function", "type", "id"}
_SPACE = " \t\r\n"
_PLAIN = re.compile(r'[^"\\]*')
_OUTSIDE = re.compile(r'[^"{}\[\]]*')
_SCALAR = re.compile(r"[^,}\]\s]*")
_WHOLE_ESCAPES = re.compile(r"(?:[^\\]|\\u[0-9a-fA-F]{4}|\\[^u])*", re.DOTALL)
_HALF_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")


def unescaped(raw: str) -> str:
    """Return the value of a JSON string without its quotes; half surrogate pairs become U+FFFD."""
    try:
        value: str = json.loads(f'"{raw}"', strict=False)
    except ValueError:
        return raw
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def num_sure(raw: str) -> int:
    """Return how much of a JSON string's inside can be unescaped whatever follows."""
    found = _WHOLE_ESCAPES.match(raw)
    assert found is not None
    half = _HALF_PAIR.search(raw, max(0, found.end() - 6), found.end())
    return half.start() if half else found.end()


class CallReader:
    """Follows one object; start it behind the opening brace.

    `known` limits the names, and the keys before a name: an object that cannot be a call of these is `rejected` as soon
    as that is sure. With `name` given the text is the arguments alone, starting at their brace.
    """

    def __init__(self, known: Collection[str] | None = None, *, name: str | None = None) -> None:
        self.name: str | None = None
        self.done = False
        self.rejected = False
        self.events: list[Event] = []
        self._known = known
        self._alone = name is not None
        self._key = ""
        self._word = ""  # of a key or name, or what of a string argument is not passed on yet
        self._wrappers = 0  # open {"function": {...}} objects
        self._nest = 0
        self._quoted = self._escaped = False
        self._to: Callable[[str], None] = self._argue
        self._waiting: list[str] = []
        self._argued = self._any = False
        self._state: Callable[[str, int, int], int] = self._between
        if name is not None:
            self._named(name)
            self._argued, self._state = True, self._nested

    @property
    def in_string(self) -> bool:
        """Tell whether the text stands inside a string."""
        return self._quoted

    @property
    def may_be_call(self) -> bool:
        """Tell whether what was read so far may become a call."""
        if self.rejected or self._known is None or not self._quoted:
            return not self.rejected
        words = self._known if self._state == self._read_name else _KEYS if self._state == self._read_key else ("",)
        return any(word.startswith(unescaped(self._word)) for word in words) or self._state == self._text

    def feed(self, text: str, at: int, end: int) -> int:
        """Read text[at:end]; returns how far it came, which is less than `end` only when the call is over."""
        while at < end and not self.done and not self.rejected:
            at = self._state(text, at, end)
        return at

    def close(self) -> None:
        """Take the call's closing tag: an object ends by its own brace."""

    def break_off(self) -> None:
        """Pass on what is held when the text ends inside the call."""
        if self._state == self._scalar and not "null".startswith(self._word):
            self._to(self._word)

    def _between(self, text: str, at: int, _end: int) -> int:
        char = text[at]
        if char == '"':
            self._word, self._quoted, self._state = "", True, self._read_key
        elif char == "}" and self._wrappers:
            self._wrappers -= 1
        elif char == "}":
            self._finish()
        return at + 1

    def _read_key(self, text: str, at: int, end: int) -> int:
        at = self._string(text, at, end)
        if not self._quoted:
            self._key, self._state = unescaped(self._word), self._colon
            if self._known is not None and self.name is None and self._key not in _KEYS:
                self.rejected = True
        return at

    def _colon(self, text: str, at: int, _end: int) -> int:
        if text[at] == ":":
            self._state = self._value
        elif text[at] not in _SPACE:
            self._state = self._between
            return at
        return at + 1

    def _value(self, text: str, at: int, _end: int) -> int:
        char = text[at]
        if char in _SPACE:
            return at + 1
        if char == '"' and self.name is None and self._key in ("name", "function"):
            self._word, self._quoted, self._state = "", True, self._read_name
            return at + 1
        if char == "{" and self._key == "function":
            self._wrappers, self._state = self._wrappers + 1, self._between
            return at + 1
        wanted = self._key in _ARGUMENTS and not self._argued
        self._argued = self._argued or wanted
        self._to = self._argue if wanted else _drop
        self._nest, self._word = 0, ""
        if char == '"':
            self._quoted, self._state = True, self._text
            return at + 1
        self._state = self._nested if char in "{[" else self._scalar
        return at

    def _read_name(self, text: str, at: int, end: int) -> int:
        at = self._string(text, at, end)
        if not self._quoted:
            self._state = self._between
            name = unescaped(self._word)
            if not name or (self._known is not None and name not in self._known):
                self.rejected = True
            else:
                self._named(name)
        return at

    def _string(self, text: str, at: int, end: int) -> int:
        """Read on in a string into `_word`; `_quoted` falls at its end."""
        start = at
        while at < end:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = _PLAIN.match(text, at, end)
            assert found is not None
            at = found.end()
            if at < end and text[at] == '"':
                self._word += text[start:at]
                self._quoted = False
                return at + 1
            if at < end:
                self._escaped = True
                at += 1
        self._word += text[start:at]
        return at

    def _text(self, text: str, at: int, end: int) -> int:
        """Read arguments that are a string: pass on what is unescaped for sure."""
        at = self._string(text, at, end)
        cut = num_sure(self._word) if self._quoted else len(self._word)
        self._to(unescaped(self._word[:cut]))
        self._word = self._word[cut:]
        if not self._quoted:
            self._state = self._between
        return at

    def _nested(self, text: str, at: int, end: int) -> int:
        """Read an object or a list."""
        start = at
        while at < end:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_PLAIN if self._quoted else _OUTSIDE).match(text, at, end)
            assert found is not None
            at = found.end()
            if at == end:
                break
            char = text[at]
            at += 1
            if char == "\\":
                self._escaped = True
            elif char == '"':
                self._quoted = not self._quoted
            else:
                self._nest += 1 if char in "{[" else -1
                if self._nest <= 0:
                    self._to(text[start:at])
                    self._end_value()
                    return at
        self._to(text[start:at])
        return at

    def _scalar(self, text: str, at: int, end: int) -> int:
        found = _SCALAR.match(text, at, end)
        assert found is not None
        self._word += text[at : found.end()]
        if found.end() < end:
            if self._word != "null":
                self._to(self._word)
            self._state = self._between
        return found.end()

    def _end_value(self) -> None:
        if self._alone:
            self._finish()
        self._state = self._between

    def _named(self, name: str) -> None:
        self.name = name
        self.events.append(CallBegin(name))
        waiting, self._waiting = self._waiting, []
        for piece in waiting:
            self._argue(piece)

    def _argue(self, piece: str) -> None:
        if not piece:
            return
        if self.name is None:
            self._waiting.append(piece)
        else:
            self._any = True
            self.events.append(Arguments(piece))

    def _finish(self) -> None:
        self.done = True
        if self.name is not None and not self._any:
            self.events.append(Arguments("{}"))


def _drop(_piece: str) -> None:
    """Take a value that nobody wants."""
