"""How many guesses are worth their time: how often they come true, against what checking them costs.

A guess is checked in a row of its own, and a step with guesses is longer than one without. All sequences of a step pay
for that, so it is judged for all together: those whose guesses are good carry the step, those whose guesses are bad get
none and shall not lose much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

# How often the guess behind so many matching tokens is right, from answers of SmolLM2-135M to all kinds of prompts; the
# first is for guesses that nothing but their proposer speaks for.
_USUAL_RATES = (0.5, 0.2, 0.45, 0.55, 0.65, 0.7, 0.75, 0.8)
_LOGITS = tuple(math.log(rate / (1 - rate)) for rate in _USUAL_RATES)
_RATE_STEP = 0.5
_FARTHEST = 4.0
_HOPELESS = 0.1  # not worth the host's time either
_TRIED = frozenset((1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 192, 256))


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

    def chances(self, matched: int, begin: int, end: int) -> list[float]:
        """Return how likely guesses `begin` to `end` - 1 come true with all before them, without hopeless ones."""
        chance, chances = 1.0, []
        for n in range(end):
            chance *= self.rate(_behind(matched, n))
            if chance < _HOPELESS:
                break
            if n >= begin:
                chances.append(chance)
        return chances


def best(
    chances: Sequence[Sequence[float]], extra: Callable[[int], float], num_sequences: int, limit: int
) -> tuple[list[int], float]:
    """Return how many guesses of each sequence to check in one step, and what that gains, above 0 if anything.

    `chances` of a sequence fall from guess to guess, `extra` is what so many rows add to a step, in plain steps. The
    gain is that of the logarithms of all rates: what doubles one answer's rate may halve another's, not more, and where
    all guess alike it is largest where the rate is.
    """
    ranked = sorted(_marginal(chances), reverse=True)[:limit]
    gain, count, true = 0.0, 0, 0.0
    for rows, (more, _) in enumerate(ranked, 1):
        true += more
        if rows in _TRIED or rows == len(ranked):
            net = true - num_sequences * math.log1p(extra(rows))
            if net > gain:
                gain, count = net, rows
    lengths = [0] * len(chances)
    for _, at in ranked[:count]:
        lengths[at] += 1
    return lengths, gain


def _marginal(chances: Sequence[Sequence[float]]) -> Iterator[tuple[float, int]]:
    """Yield what each guess adds to the logarithm of its sequence's rate, and which sequence that is."""
    for at, own in enumerate(chances):
        expected = 1.0
        for chance in own:
            yield math.log1p(chance / expected), at
            expected += chance


def _behind(matched: int, n: int) -> int:
    """Return how many tokens match before guess number n: those before it do if it is looked at."""
    return matched + n if matched else 0
