"""Speculative decoding without a second model: which guesses go into a step, and what came of them.

A guess never changes an answer. Each position is drawn with the noise and the rules that it would have without drafts,
so the tokens that come out are those that would have come one by one; guesses only decide how many come at once.

A sequence is drafted when all its tokens are known. With steps in flight they seldom are: a sequence whose guesser has
something to say sits out until its draw has been read, which costs it the overlap of host and device.
"""

from __future__ import annotations

from model_svc.engine.draw_rules import NO_DRAFTS, Drafts, foresee
from model_svc.engine.plan import StepPlan
from model_svc.engine.sequence import Sequence
from model_svc.spec.proposer import Guess, Guesser, Proposer
from model_svc.spec.worth import Acceptance, RowPrices
from wire.messages import unpack_ids

_SURE = 0.5  # how often guesses must come true that are worth giving up the overlap for


class Drafting:
    """What drafts know of one sequence.

    `hint` is a guess that was not worth a row: where, which token, behind how many that match; `matched` is that number
    for the guesses in flight, or for those that it `waited` for.
    """

    __slots__ = ("acceptance", "guesser", "hint", "matched", "max_length", "waited")

    def __init__(self, guesser: Guesser, max_length: int) -> None:
        self.guesser = guesser
        self.max_length = max_length
        self.acceptance = Acceptance()
        self.hint: tuple[int, int, int] | None = None
        self.matched = 0
        self.waited = False


class Drafter:
    """Drafts for all sequences of an engine."""

    def __init__(self, proposer: Proposer, *, max_length: int, max_drafts: int, adaptive: bool = True) -> None:
        """At most `max_length` guesses for a sequence and `max_drafts` in a step; all of them if not `adaptive`."""
        self.num_drafted = 0
        self.num_accepted = 0
        self.num_draws = 0
        self.max_drafts = max_drafts
        self._proposer = proposer
        self._max_length = max_length
        self._adaptive = adaptive
        self._prices = RowPrices()

    def admit(self, seq: Sequence) -> None:
        """Take on a new sequence, unless it asked for no drafts or for bits that no batch may change."""
        sampling = seq.request.sampling
        limit = self._max_length if sampling.num_draft_tokens is None else sampling.num_draft_tokens
        if limit > 0 and not sampling.deterministic:
            guesser = self._proposer.start(unpack_ids(seq.request.prompt.prediction_ids))
            seq.drafting = Drafting(guesser, min(limit, self._max_length))

    def drafts(self, seq: Sequence, limit: int, num_sequences: int) -> Drafts:
        """Return guesses for a sequence whose tokens are all known; `limit` is what step and blocks have room for."""
        drafting = seq.drafting
        if drafting is None:
            return NO_DRAFTS
        if self._adaptive and self._prices.price(num_sequences) >= 1:
            return NO_DRAFTS  # no guess is worth the time to look for it
        limit = min(limit, drafting.max_length, seq.stop.max_tokens - seq.num_output_tokens - 1)
        guess = drafting.guesser.guess(seq.token_ids, max(limit, 1))
        self._check_hint(drafting, seq, guess)
        length = self._length(drafting, guess, num_sequences, limit)
        if not guess.token_ids or length == 0:
            return NO_DRAFTS
        drafting.hint, drafting.matched = None, guess.matched
        return foresee(seq, guess.token_ids[:length])

    def waits(self, seq: Sequence, num_sequences: int) -> bool:
        """Whether a sequence had better wait for its draws in flight, because there will be guesses behind them."""
        drafting = seq.drafting
        if drafting is None or (self._adaptive and self._prices.price(num_sequences) >= 1):
            return False
        guess = drafting.guesser.guess(seq.token_ids, seq.num_pending + 1)
        if len(guess.token_ids) <= seq.num_pending or drafting.acceptance.rate(guess.matched) < _SURE:
            return False
        drafting.waited = self._length(drafting, guess, num_sequences, drafting.max_length) > 0
        drafting.matched = guess.matched
        return drafting.waited

    def note(self, seq: Sequence, num_drafts: int, num_accepted: int) -> None:
        """Note how many of a sequence's guesses came true."""
        self.num_draws += 1
        self.num_drafted += num_drafts
        self.num_accepted += num_accepted
        if seq.drafting is not None:
            seq.drafting.acceptance.note(num_accepted, num_drafts, seq.drafting.matched)

    def observe(self, plan: StepPlan, compute_ms: float) -> None:
        """Note what a step of answers took."""
        num_drafts = sum(item.num_drafts for item in plan.sequences)
        self._prices.observe(compute_ms, len(plan.sequences), num_drafts)

    def _length(self, drafting: Drafting, guess: Guess, num_sequences: int, limit: int) -> int:
        if not self._adaptive:
            return max(limit, 0)
        return drafting.acceptance.length(guess.matched, self._prices.price(num_sequences), limit)

    def _check_hint(self, drafting: Drafting, seq: Sequence, guess: Guess) -> None:
        """Learn for nothing from a guess that was not computed, and note the next one."""
        hint, waited = drafting.hint, drafting.waited
        drafting.hint, drafting.waited = None, False
        if hint is not None and hint[0] < seq.num_tokens:
            drafting.acceptance.note(int(seq.token_ids[hint[0]] == hint[1]), 1, hint[2])
        elif waited and not guess.token_ids:
            drafting.acceptance.note(0, 1, drafting.matched)
        if guess.token_ids:
            drafting.hint = (seq.num_tokens, guess.token_ids[0], guess.matched)
