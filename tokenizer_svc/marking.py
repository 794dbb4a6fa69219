"""Tells template text from callers' text in a rendered prompt, so that only the template can write control tokens.

The conversation is rendered twice: as it is, and with every caller's string between two marks nobody can guess. If
both renderings are the same text but for the marks, they show who wrote what, and a control token counts only where
it touches no caller's string at all. A template that looks into strings (splits them, compares them) can make the two
differ. Then all signs that control tokens are made of are masked in callers' strings first, so that the template sees
no tags there; what it would have done with them it does not do. A template that compares strings even so is left with
the masks alone.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from typing import Any

_PRIVATE = range(0xF0000, 0xFFFFE)


def private_word() -> str:
    """Return eight random private-use characters (127 bits)."""
    return "".join(chr(_PRIVATE.start + secrets.randbelow(len(_PRIVATE))) for _ in range(8))


class Marks:
    """The marks of one process, and the control tokens they guard. `placeholders`: control text -> its stand-in."""

    def __init__(self, controls: Iterable[str]) -> None:
        texts = sorted(set(controls), key=len, reverse=True)
        self.placeholders = {text: private_word() for text in texts}
        signs = {char for text in texts for char in text if not char.isalnum()} | {text[0] for text in texts}
        self._masks = {char: private_word() for char in signs if not char.isspace()}
        self._begin, self._end = private_word(), private_word()
        either = "|".join(map(re.escape, texts)) or "(?!)"
        self._control = re.compile(either)
        self._sign = re.compile("|".join(re.escape(char) for char in signs if not char.isalnum()) or "(?!)")
        self._control_start = re.compile(f"(?={either}).", re.DOTALL)  # finds overlapping ones too
        self._marks = re.compile(f"({self._begin}|{self._end})")

    def place(self, text: str) -> str:
        """Put stand-ins for the control tokens of text that the template (or we) wrote: leftmost, then longest."""
        return self._control.sub(lambda found: self.placeholders[found[0]], text)

    def around(self, text: str) -> str:
        """Mark a caller's string; white space at its ends stays outside, since templates trim."""
        core = text.strip()
        if not core:
            return text
        at = text.index(core)
        return f"{text[:at]}{self._begin}{core}{self._end}{text[at + len(core) :]}"

    def inside(self, text: str) -> str:
        """Mask in a caller's string what control tokens begin with, and the signs that they are made of."""
        text = self._control_start.sub(self._mask, text)
        return self._sign.sub(self._mask, text)

    def _mask(self, found: re.Match[str]) -> str:
        return self._masks.get(found[0], found[0])

    def resolve_around(self, marked: str, plain: str) -> str | None:
        """Return `plain` with stand-ins where the template wrote control tokens, or None if the marks do not tell."""
        parts = self._marks.split(marked)  # template text, mark, caller's text, mark, template text ...
        if any(mark != (self._end if at % 2 else self._begin) for at, mark in enumerate(parts[1::2])):
            return None
        texts = parts[0::2]
        if len(texts) % 2 == 0 or "".join(texts) != plain:
            return None
        return "".join(text if at % 2 else self.place(text) for at, text in enumerate(texts))

    def resolve_inside(self, marked: str) -> str:
        """Return a rendering of masked strings with stand-ins where control tokens are whole."""
        return self.unmask(self.place(marked))

    def unmask(self, text: str) -> str:
        """Undo `inside`."""
        for char, mask in self._masks.items():
            text = text.replace(mask, char)
        return text


def map_strings(value: Any, change: Callable[[str], str], change_key: Callable[[str], str]) -> Any:
    """Apply `change` to every string in JSON-like data, and `change_key` to the keys of objects."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change_key(key): map_strings(item, change, change_key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_strings(item, change, change_key) for item in value]
    return value
