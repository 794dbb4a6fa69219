"""Find a tag in a stream of bytes that arrives in pieces: it may be split over pieces or sit amid other text.

Bytes, not token ids: the same tag has many spellings in tokens, and a token may hold its end and the text after it.
"""

from __future__ import annotations


class ByteMatcher:
    """Search one tag. `num_held` bytes at the end of what was fed may still turn out to be the tag's beginning."""

    __slots__ = ("_tag", "_tail")

    def __init__(self, tag: bytes) -> None:
        """An empty tag is never found."""
        self._tag = tag
        self._tail = b""

    @property
    def num_held(self) -> int:
        """How many of the last bytes are undecided."""
        return len(self._tail)

    def passes(self, data: bytes) -> bool:
        """Whether the next piece is ordinary text to its end: nothing is undecided, and no tag begins in it."""
        return not self._tail and (not self._tag or self._tag[0] not in data)

    def scan(self, data: bytes) -> tuple[int, int] | None:
        """Take the next piece; return (begin, end) of the first tag in it, `begin` < 0 if it began in an earlier one.

        What follows `end` has not been looked at.
        """
        if not self._tag:
            return None
        held = len(self._tail)
        joined = self._tail + data
        at = joined.find(self._tag)
        if at >= 0:
            self._tail = b""
            return at - held, at - held + len(self._tag)
        self._tail = self._undecided(joined)
        return None

    def reset(self) -> None:
        """Forget the undecided bytes: they were ordinary text."""
        self._tail = b""

    def _undecided(self, joined: bytes) -> bytes:
        """Return the longest end of `joined` that is a proper beginning of the tag."""
        tag = self._tag
        begin = max(0, len(joined) - len(tag) + 1)
        while (begin := joined.find(tag[0], begin)) >= 0:
            if tag.startswith(joined[begin:]):
                return joined[begin:]
            begin += 1
        return b""
