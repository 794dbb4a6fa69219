"""What the drafter knows of one sequence."""

from __future__ import annotations

from model_svc.spec.proposer import Guess, Guesser
from model_svc.spec.worth import Acceptance

NOTHING = Guess([])


class Drafting:
    """How a sequence has been guessed so far, and the guess for its next step.

    `hint` is a guess that is not computed: where, which token, behind how many that match. `guess` and `length` are
    what the step that is being planned may check, `matched` is that number for the guesses in flight.
    """

    __slots__ = ("acceptance", "guess", "guesser", "hint", "length", "matched", "max_length")

    def __init__(self, guesser: Guesser, max_length: int) -> None:
        self.guesser = guesser
        self.max_length = max_length
        self.acceptance = Acceptance()
        self.hint: tuple[int, int, int] | None = None
        self.matched = 0
        self.guess = NOTHING
        self.length = 0
