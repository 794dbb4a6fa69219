"""Typed placeholders: the same value gets the same one within a reply, so that the reader can tell values apart."""

from __future__ import annotations

from gateway.postprocess.safety.folding import folded_text
from gateway.postprocess.safety.rule import Finder

_SEPARATORS = str.maketrans("", "", " -/.()")


class Placeholders:
    """The values redacted in one reply. They are kept as long as the reply is written, and nowhere else."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {}

    def of(self, finder: Finder, text: str) -> str:
        """Return what stands for a match."""
        if "{n}" not in finder.replacement:
            return finder.replacement
        numbers = self._numbers.setdefault(finder.replacement, {})
        value = folded_text(text).translate(_SEPARATORS)
        return finder.replacement.replace("{n}", str(numbers.setdefault(value, len(numbers) + 1)))
