"""What a scripted replica says: pieces of bytes with phases, and how the answer ends.

A piece may wait for an event first, so tests decide when a token comes without any sleep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio

from wire.errors import HeadraceError
from wire.messages import ANSWER, MARKUP, REASONING


@dataclass(frozen=True)
class Piece:
    """One token. `marks` are (offset, phase) inside it; `after` is waited for before it is sent."""

    raw: bytes
    phase: int = ANSWER
    marks: tuple[tuple[int, int], ...] = ()
    after: anyio.Event | None = None


def say(*texts: str | bytes) -> list[Piece]:
    """Return answer pieces."""
    return [Piece(text if isinstance(text, bytes) else text.encode()) for text in texts]


def think(*texts: str | bytes) -> list[Piece]:
    """Return reasoning pieces."""
    return [Piece(text if isinstance(text, bytes) else text.encode(), REASONING) for text in texts]


def tag(text: str) -> list[Piece]:
    """Return a think tag as one token."""
    return [Piece(text.encode(), MARKUP)]


@dataclass
class Script:
    """What is said. `finish` None: never ends by itself. `per_chunk` tokens go into one chunk.

    `error` is reported by the replica after the last piece; `choices` overrides `pieces` for single choices.
    """

    pieces: Sequence[Piece] = ()
    finish: str | None = "stop"
    per_chunk: int = 1
    choices: dict[int, Sequence[Piece]] = field(default_factory=dict)
    error: HeadraceError | None = None
    before_end: anyio.Event | None = None
    reasoning_ended_by: str | None = None
