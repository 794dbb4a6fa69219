"""Who guesses what a sequence will say next. A guess is only ever checked, never believed: it costs time, not truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Guess(NamedTuple):
    """Tokens that may come next; `matched` tokens before them speak for that, 0: something else does."""

    token_ids: list[int]
    matched: int = 0


class Guesser(Protocol):
    """Guesses for one sequence."""

    def guess(self, token_ids: Sequence[int], limit: int) -> Guess:
        """Return at most `limit` tokens that may follow `token_ids`, the likeliest way to go on; none if unsure.

        From call to call `token_ids`, prompt and output, only grow at their end.
        """
        ...


class Proposer(Protocol):
    """A way to guess."""

    def start(self, prediction: Sequence[int] = ()) -> Guesser:
        """Return the guesser of a new sequence; `prediction` is what its client thinks the answer will be like."""
        ...
