"""What an edge has of a choice: its ids and where their phase changes, so that another replica can continue from there.

Four bytes a token; the text made of them lies elsewhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from wire.messages import ANSWER, Checkpoint, PhaseMark, TokenChunk


class Received:
    """The tokens of one choice, from the first one on."""

    __slots__ = ("_ids", "_marks", "_phase")

    def __init__(self) -> None:
        self._ids = array("i")
        self._marks: list[PhaseMark] = []
        self._phase = ANSWER

    def add(self, chunk: TokenChunk) -> None:
        """Take the next tokens, without repeats and gaps."""
        at = len(self._ids)
        if chunk.phase != self._phase and chunk.token_ids:
            self._marks.append(PhaseMark(at, 0, chunk.phase))
            self._phase = chunk.phase
        for mark in chunk.marks:
            self._marks.append(PhaseMark(at + mark.index, mark.offset, mark.phase))
            self._phase = mark.phase
        self._ids.extend(chunk.token_ids)

    @property
    def num_tokens(self) -> int:
        """Return how many there are."""
        return len(self._ids)

    @property
    def ids(self) -> bytes:
        """Return the ids, packed."""
        return self._ids.tobytes()

    @property
    def marks(self) -> tuple[PhaseMark, ...]:
        """Return where the phase changes, counted from the first token."""
        return tuple(self._marks)


def checkpoint(attempt: int, received: dict[int, Received], ended: Iterable[int] = ()) -> Checkpoint:
    """Return what another attempt can go on from."""
    return Checkpoint(
        attempt=attempt,
        token_ids={choice: one.ids for choice, one in received.items()},
        marks={choice: one.marks for choice, one in received.items() if one.marks},
        ended=tuple(sorted(ended)),
    )
