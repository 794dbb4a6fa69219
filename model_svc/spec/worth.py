"""How many guesses are worth their time: what checking one costs, and how often they come true.

A guess is checked in a row of its own. Its price is the time that such a row adds to a step, measured against the time
that a token takes without it; a guess that comes true less often than that slows its sequence down. Rows are nearly
free while a step is bound by reading weights, and dear when many sequences share it, so drafts go as load comes.
"""

from __future__ import annotations

import math

# How often the guess behind so many matching tokens is right, from answers of SmolLM2-135M to all kinds of prompts; the
# first is for guesses that nothing but their proposer speaks for.
_USUAL_RATES = (0.5, 0.2, 0.45, 0.55, 0.65, 0.7, 0.75, 0.8)
_LOGITS = tuple(math.log(rate / (1 - rate)) for rate in _USUAL_RATES)
_RATE_STEP = 0.5
_FARTHEST = 4.0
_TIME_WEIGHT = 0.2
_FIRST_SHARE = 0.25  # of a row in the time of a step without rows, until one has been seen
_FEW = 2  # sequences beside which it is worth finding out


class Acceptance:
    """How often the guesses for one sequence come true: oftener or less often than usual, which it learns as it goes.

    One number for a sequence, added to the logit of what is usual behind so many matching tokens.
    """

    __slots__ = ("_luck",)

    def __init__(self) -> None:
        self._luck = 0.0

    def rate(self, matched: int) -> float:
        """Return how often a guess behind `matched` matching tokens comes true."""
        return 1 / (1 + math.exp(-self._luck - _LOGITS[min(matched, len(_LOGITS) - 1)]))

    def note(self, num_right: int, num_guesses: int, matched: int) -> None:
        """Learn from a run of guesses of which the first `num_right` came true; what is behind a miss was not tried."""
        for n in range(min(num_right + 1, num_guesses)):
            surprise = (n < num_right) - self.rate(_behind(matched, n))
            self._luck = min(_FARTHEST, max(-_FARTHEST, self._luck + _RATE_STEP * surprise))

    def length(self, matched: int, price: float, limit: int) -> int:
        """Return how many guesses to check: the last of them comes true as often as it costs, or oftener."""
        chance = 1.0
        for n in range(limit):
            chance *= self.rate(_behind(matched, n))
            if chance < price:
                return n
        return limit


def _behind(matched: int, n: int) -> int:
    """Return how many tokens match before guess number n: those before it do if it is looked at."""
    return matched + n if matched else 0


class RowPrices:
    """What a further row costs, from the runner's own times of steps without prompts."""

    def __init__(self) -> None:
        self._plain_ms: dict[int, float] = {}  # by sequences
        self._row_ms = 0.0

    def observe(self, compute_ms: float, num_sequences: int, num_drafts: int) -> None:
        """Note one step."""
        if compute_ms <= 0:
            return
        plain_ms = self._plain_ms.get(num_sequences, 0.0)
        if num_drafts == 0:
            self._plain_ms[num_sequences] = _mean(plain_ms, compute_ms)
        elif plain_ms:
            self._row_ms = _mean(self._row_ms, max(0.0, compute_ms - plain_ms) / num_drafts)

    def price(self, num_sequences: int) -> float:
        """Return what a row costs beside so many sequences, in tokens that the step could make instead."""
        plain_ms = self._plain_ms.get(num_sequences, 0.0)
        if not plain_ms or not self._row_ms:
            rows = _FIRST_SHARE * num_sequences
            return rows / (1 + rows) if num_sequences <= _FEW else 1.0
        return self._row_ms * num_sequences / plain_ms


def _mean(mean: float, value: float) -> float:
    """Return the running mean; one step that the machine held up counts as twice the usual at most."""
    return value if mean == 0.0 else mean + _TIME_WEIGHT * (min(value, 2 * mean) - mean)
