"""Undoes needless escapes in streamed JSON, so that rules see the characters that a tool will see.

`"z\\u006frg"` and `"zorg"` are the same string; a filter that looks at the text alone would miss the first. What leaves
is JSON of the same meaning: escapes of quotes, backslashes, control characters and lone surrogates stay as they are.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_LOW = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")


class PlainJson:
    """One stretch of JSON text."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str, *, final: bool = False) -> str:
        """Return the text with plain characters for escapes; an escape that is not whole yet is held."""
        if not self._held and "\\" not in text:
            return text
        text = self._held + text
        shown: list[str] = []
        at = 0
        while True:
            found = _ESCAPE.search(text, at)
            if found is None:
                break
            start, end = found.span()
            char, end = self._char(text, found, final=final)
            if char is None:
                shown.append(text[at:start])
                self._held = text[start:]
                return "".join(shown)
            shown += (text[at:start], char)
            at = end
        cut = len(text) - (text.endswith("\\", at) and not final)
        self._held = text[cut:]
        return "".join((*shown, text[at:cut]))

    @staticmethod
    def _char(text: str, found: re.Match[str], *, final: bool) -> tuple[str | None, int]:
        """Return what stands for an escape and where it ends; None: the other half of a pair has not come."""
        raw, end = found[0], found.end()
        if found[1] is None:
            if raw == "\\u" and not final and len(text) - found.start() < 6:
                return None, end
            return "/" if raw == "\\/" else raw, end
        code = int(found[1], 16)
        if 0xD800 <= code < 0xDC00:
            low = _LOW.match(text, end)
            if low:
                return chr(0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00), low.end()
            may_come = len(text) - end < 6 and "\\uDCFF".startswith(text[end : end + 2]) and not final
            return (None if may_come else raw), end
        plain = code >= 0x20 and code not in (0x22, 0x5C, 0x7F) and not 0xDC00 <= code < 0xE000
        return (chr(code) if plain else raw), end
