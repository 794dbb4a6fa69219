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
    """How long text was held back: the most characters at a time, and the longest time one of them waited."""

    def __init__(self) -> None:
        self.max_chars = 0
        self.max_ms = 0.0
        self._came: deque[tuple[int, float]] = deque()  # (characters fed so far, when), of what is not let go

    def note(self, num_fed: int, num_held: int) -> None:
        """Take note after each piece of text."""
        came = self._came
        if not num_held and not came:
            return
        now = time.monotonic()
        while came and came[0][0] <= num_fed - num_held:
            self.max_ms = max(self.max_ms, (now - came.popleft()[1]) * 1e3)
        if num_held:
            self.max_chars = max(self.max_chars, num_held)
            if not came or came[-1][0] != num_fed:
                came.append((num_fed, now))
