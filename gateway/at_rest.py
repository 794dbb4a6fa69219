"""Files that are reloaded when they have changed, and only once they have stopped changing.

An editor or a shell empties a file before it writes it. Whoever looks in between finds no keys, or no rules; so a
change counts when two looks in a row have found it the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

Stamp = tuple[int, int, int]
NO_FILE: Stamp = (0, 0, 0)


def stamp_of(path: Path) -> Stamp:
    """Tell one state of a file from another; a file that was replaced has another inode."""
    try:
        found = path.stat()
    except OSError:
        return NO_FILE
    return found.st_mtime_ns, found.st_size, found.st_ino


class AtRest:
    """Remembers the look before."""

    def __init__(self) -> None:
        self._before: dict[str, Any] = {}

    def __call__(self, name: str, state: object) -> bool:
        """Tell whether something was in this state at the look before, too."""
        rests = name in self._before and self._before[name] == state
        self._before[name] = state
        return rests
