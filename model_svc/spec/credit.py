"""What guesses may still lose: whatever they promise, they are made on credit, and only what came of them earns more.

The unit is a plain step. A check is charged what it took longer, and earns the tokens that came true; a plain step
earns a two-hundredth. So useless guesses, or wrong prices, cost a few steps once and half a percent from then on.
"""

from __future__ import annotations

_AT_FIRST = 1.5
_PER_STEP = 0.005
_MOST = 4.0
_DEAREST = 4.0  # a step that the machine held up is charged as so much at most


class Credit:
    """Of one engine."""

    def __init__(self) -> None:
        self.left = _AT_FIRST

    @property
    def spent(self) -> bool:
        """Whether no guesses may be made for a while."""
        return self.left <= 0

    def plain_step(self) -> None:
        """Earn what a step without guesses earns."""
        self._earn(_PER_STEP)

    def charge(self, share: float) -> None:
        """Pay for a step that took so much of a plain step longer."""
        self.left -= max(0.0, min(share, _DEAREST))

    def came_true(self, num_guesses: int, num_sequences: int) -> None:
        """Earn the time that so many guesses spared."""
        self._earn(num_guesses / num_sequences)

    def _earn(self, share: float) -> None:
        self.left = min(_MOST, self.left + share)
