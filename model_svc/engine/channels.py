"""Where thinking begins and ends in messages with channels (wire/harmony.py), token by token.

Control tokens are whole tokens, unlike tags of text: nothing is ever undecided, and text that only spells one is text.
A boundary takes no bytes: the frame of messages belongs to the answer, where the edge reads it and shows none of it.
"""

from __future__ import annotations

from copy import copy

from wire.harmony import CHANNEL, END, START, STOPS, TAGS, Kind, MessageReader

_TAGS = {tag.encode(): tag for tag in TAGS}
_ENDS = frozenset(tag.encode() for tag in (END, START, CHANNEL, *STOPS))
_END = frozenset({END.encode()})
END_BYTES = END.encode()


class BeginningOfThought:
    """Finds where a message opens that is not for the user; `begun`: in the header that the prompt began."""

    __slots__ = ("_reader",)

    num_held = 0

    def __init__(self, *, begun: bool) -> None:
        self._reader = MessageReader(Kind.HEADER if begun else Kind.BETWEEN)

    def passes(self, data: bytes) -> bool:
        """Whether a token is text within a message."""
        return self._reader.kind is not Kind.HEADER and data not in _TAGS

    def scan(self, data: bytes) -> tuple[int, int] | None:
        """Take a token; return its end, twice, if thinking begins behind it."""
        tag = _TAGS.get(data)
        if tag is None:
            self._reader.text(data)
            return None
        self._reader.tag(tag)
        return (len(data), len(data)) if self._reader.kind is Kind.REASONING else None

    def reset(self) -> None:
        """Forget undecided bytes; there are none."""

    def __copy__(self) -> BeginningOfThought:
        other = BeginningOfThought(begun=True)
        other._reader = copy(self._reader)
        return other


class EndOfThought:
    """Finds what ends a message; `strict`: its end alone, since what must follow hangs on it."""

    __slots__ = ("_ends",)

    num_held = 0

    def __init__(self, *, strict: bool) -> None:
        self._ends = _END if strict else _ENDS

    def passes(self, data: bytes) -> bool:
        """Whether a token is thinking."""
        return data not in self._ends

    def scan(self, data: bytes) -> tuple[int, int] | None:
        """Take a token; return its beginning, twice, if thinking ends before it."""
        return (0, 0) if data in self._ends else None

    def reset(self) -> None:
        """Forget undecided bytes; there are none."""
