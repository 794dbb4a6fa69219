"""What the filter tells beside the text: which rules matched where, and how long text was held for it."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from gateway.postprocess.safety.rule import Direction


class Hit(NamedTuple):
    """A rule matched characters start .. end - 1 of the text before filtering; `digest` names it, if asked for.

    `failed`: nothing was found, but the judge of the rule could not judge.
    """

    rule: str
    action: str
    start: int
    end: int
    direction: Direction = "answer"
    digest: str = ""
    failed: bool = False


class Delay:
    """How long text was held back: the most characters at a time, the longest time one waited, the sum of all waits.

    A wait is that of a piece of text as it came (about a token); `num_pieces` counts also those that left at once.
    `again`: the pieces are those that another filter has counted.
    """

    def __init__(self, *, again: bool = False) -> None:
        self._again = again
        self.max_chars = 0
        self.max_ms = 0.0
        self.sum_ms = 0.0
        self.num_pieces = 0
        self._num_fed = 0
        self._came: deque[tuple[int, float]] = deque()  # (characters fed so far, when), of what is not let go

    def note(self, num_fed: int, num_held: int) -> None:
        """Take note after each piece of text."""
        came = self._came
        new = num_fed > self._num_fed
        if new:
            self._num_fed = num_fed
            self.num_pieces += not self._again
        if not num_held and not came:
            return
        now = time.monotonic()
        while came and came[0][0] <= num_fed - num_held:
            waited_ms = (now - came.popleft()[1]) * 1e3
            self.sum_ms += waited_ms
            self.max_ms = max(self.max_ms, waited_ms)
        if num_held:
            self.max_chars = max(self.max_chars, num_held)
            if new:
                came.append((num_fed, now))
