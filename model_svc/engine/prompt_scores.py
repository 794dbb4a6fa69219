"""The log-probabilities of a prompt's own tokens, gathered while the prompt is computed, chunk by chunk.

What the prefix cache holds is not computed, so it gives none: such a sequence takes no hits (its blocks may be hit by
others). A prompt that is computed again after a preemption is asked for again, and says the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from wire.messages import TokenLogprob


class PromptScores:
    """Entry n belongs to prompt token n + 1: nothing predicts the first one."""

    __slots__ = ("_num_wanted", "entries", "num_top")

    def __init__(self, num_prompt_tokens: int, num_top: int) -> None:
        self.num_top = num_top
        self.entries: list[TokenLogprob] = []
        self._num_wanted = num_prompt_tokens - 1

    @property
    def complete(self) -> bool:
        """Whether all have been gathered."""
        return len(self.entries) >= self._num_wanted

    def targets(self, token_ids: Sequence[int], start: int, end: int) -> bytes:
        """Return the ids whose log-probabilities a step over positions start .. end - 1 can tell."""
        if self.complete:
            return b""
        return array("i", token_ids[start + 1 : min(end, self._num_wanted) + 1]).tobytes()

    def note(self, start: int, entries: Sequence[TokenLogprob]) -> None:
        """Take over what a step from position `start` on told."""
        assert start <= len(self.entries), "a part of the prompt is missing"
        self.entries[start : start + len(entries)] = entries
