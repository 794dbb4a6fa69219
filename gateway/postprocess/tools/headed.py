"""Calls that say their name in a head between tags, with the arguments as an object behind it."""

from __future__ import annotations

import re
from typing import ClassVar

from gateway.postprocess.tools.call_reader import CallReader
from gateway.postprocess.tools.parser import JsonToolParser

_LONGEST = 256  # characters of a head, names have 64


class HeadedToolParser(JsonToolParser):
    """A style says what its heads look like: `head` matches all up to the brace, one of its groups is the name."""

    head: ClassVar[re.Pattern[str]]

    def _other(self, final: bool) -> bool:
        """Take a head. What comes before the first brace or tag decides, never how the text was cut."""
        at = self._buffer.find("{")
        tag_at, tag = self._first_tag()
        is_open = at < 0 and not tag and len(self._buffer) <= _LONGEST
        if is_open and not final:
            return False
        found = None if at < 0 or at > _LONGEST or (tag and tag_at < at) else self.head.fullmatch(self._buffer, 0, at)
        if found is None:
            return super()._other(final)
        name = next(group for group in found.groups() if group is not None)
        self._begin(at, bare=False, reader=CallReader(name=name))
        return True
