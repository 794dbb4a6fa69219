"""Reads the free text that a custom tool is called with out of the arguments that a model writes, `{"input": "..."}`.

The text goes out as it comes, unescaped. Arguments of another shape are themselves the text; none at all are no text.
"""

from __future__ import annotations

import re
from functools import reduce
from typing import Literal

from gateway.postprocess.tools.call_reader import num_sure, unescaped

NAME = "input"
_PIECES = (r"\s*\{", r'\s*"', *NAME, '"', r"\s*:", r'\s*"')
_HEAD = re.compile("".join(_PIECES))
_BEGINNING = re.compile(reduce(lambda rest, piece: f"(?:{piece}{rest})?", reversed(_PIECES), "") + r"\s*")
_EMPTY = re.compile(r"\s*\{\s*\}?\s*")
_INSIDE = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)


class FreeInput:
    """One call's."""

    def __init__(self) -> None:
        self._held = ""
        self._state: Literal["beginning", "inside", "raw", "over"] = "beginning"

    def feed(self, text: str, *, final: bool = False) -> str:
        """Take argument text; returns the input that is sure by now."""
        self._held += text
        if self._state == "beginning":
            self._begin(final)
        if self._state == "inside":
            return self._inside()
        text, self._held = self._held, "" if self._state != "beginning" else self._held
        return text if self._state == "raw" else ""

    def _begin(self, final: bool) -> None:
        head = _HEAD.match(self._held)
        if head is not None:
            self._held, self._state = self._held[head.end() :], "inside"
        elif not _EMPTY.fullmatch(self._held) and (final or not _BEGINNING.fullmatch(self._held)):
            self._state = "raw"

    def _inside(self) -> str:
        inside = _INSIDE.match(self._held)
        assert inside is not None
        end = inside.end()
        if self._held.startswith('"', end):
            text, self._state = unescaped(self._held[:end]), "over"
        else:
            cut = num_sure(self._held[:end])
            text, self._held = unescaped(self._held[:cut]), self._held[cut:]
        return text
