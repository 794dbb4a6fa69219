"""Tags whose beginning may stand at the end of a text."""

from __future__ import annotations


def overlap(text: str, tags: tuple[str, ...]) -> int:
    """Return the length of the longest end of `text` that begins a tag without being one."""
    for length in range(min(max(map(len, tags), default=1) - 1, len(text)), 0, -1):
        if any(tag.startswith(text[-length:]) and len(tag) > length for tag in tags):
            return length
    return 0
