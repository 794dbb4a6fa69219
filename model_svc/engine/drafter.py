"""Speculative decoding without a second model: which guesses go into a step, and what came of them.

A guess never changes an answer. Each position is drawn with the noise and the rules that it would have without drafts,
so the tokens that come out are those that would have come one by one; guesses only decide how many come at once.

A sequence is drafted when all its tokens are known. With steps in flight they seldom are: where guesses would pay, all
sequences sit out until the draws have been read, which costs the overlap of host and device. Meanwhile guesses are
compared with what is drawn anyway, for nothing, so it is known whose come true before any is computed.
"""

from __future__ import annotations

from collections.abc import Iterable

from model_svc.engine.drafting import NOTHING, Drafting
from model_svc.engine.draw_rules import NO_DRAFTS, Drafts, foresee
from model_svc.engine.plan import StepPlan
from model_svc.engine.sequence import Sequence
from model_svc.spec.credit import Credit
from model_svc.spec.proposer import Guess, Proposer
from model_svc.spec.step_times import StepTimes
from model_svc.spec.worth import best
from wire.messages import unpack_ids

_SURE = 0.5  # how often guesses must come true that are worth giving up the overlap for
_DOUBTS = 200  # steps in which good guesses were too dear: then their price is asked again,
_FIRST_DOUBTS = 8  # sooner where it was hardly measured
_NOW_AND_THEN = 8  # steps


class Drafter:
    """Drafts for all sequences of an engine."""

    def __init__(self, proposer: Proposer, *, max_length: int, max_drafts: int, adaptive: bool = True) -> None:
        """At most `max_length` guesses for a sequence and `max_drafts` in a step; all of them if not `adaptive`."""
        self.num_drafted = 0
        self.num_accepted = 0
        self.num_draws = 0
        self.max_drafts = max_drafts
        self.overlaps = False  # whether steps are planned while others are in flight
        self.times = StepTimes()
        self.credit = Credit()
        self._proposer = proposer
        self._max_length = max_length
        self._adaptive = adaptive
        self._num_doubts = 0
        self._num_checked = 1  # sequences of the last step with guesses
        self._settles = 0  # plain steps yet to come that do not run like those that follow one another

    def admit(self, seq: Sequence) -> None:
        """Take on a new sequence, unless it asked for no drafts or for bits that no batch may change."""
        sampling = seq.request.sampling
        limit = self._max_length if sampling.num_draft_tokens is None else sampling.num_draft_tokens
        if limit > 0 and not sampling.deterministic:
            guesser = self._proposer.start(unpack_ids(seq.request.prompt.prediction_ids))
            seq.drafting = Drafting(guesser, min(limit, self._max_length))

    def waits(self, decoding: Iterable[Sequence], limit: int, num_sequences: int) -> bool:
        """Whether all had better wait for the draws in flight, because there will be guesses behind them that pay."""
        found = [(seq, seq.drafting) for seq in decoding if seq.num_pending and seq.drafting is not None]
        if not found or limit <= 0 or not self._may_gain(num_sequences, limit):
            return False
        chances = []
        for seq, drafting in found:
            guess = self._look(seq, drafting, seq.num_pending + min(drafting.max_length, _room(seq)))
            sure = len(guess.token_ids) > seq.num_pending and drafting.acceptance.rate(guess.matched) >= _SURE
            if sure and not self._adaptive:
                return True
            end = len(guess.token_ids) if sure else 0
            chances.append(drafting.acceptance.chances(guess.matched, seq.num_pending, end))
        waits = self._adaptive and any(self._lengths(chances, limit, num_sequences))
        if waits:
            self._settles = 2
        return waits

    def allot(self, decoding: Iterable[Sequence], limit: int, num_sequences: int) -> None:
        """Share the room for guesses in a step among the sequences whose tokens are all known."""
        found = [
            (seq, seq.drafting)
            for seq in decoding
            if seq.drafting is not None and not seq.num_pending and seq.num_tokens == seq.num_computed_tokens + 1
        ]
        for _, drafting in found:
            drafting.length = 0
        if not found or limit <= 0 or not self._may_gain(num_sequences, limit):
            return
        chances = []
        for seq, drafting in found:
            room = min(drafting.max_length, _room(seq))
            drafting.guess = guess = self._look(seq, drafting, room)
            drafting.length = max(0, room)
            if self._adaptive:
                end = min(room, len(guess.token_ids))
                chances.append(drafting.acceptance.chances(guess.matched, 0, end))
        if self._adaptive:
            lengths = self._lengths(chances, limit, num_sequences)
            for (_, drafting), length in zip(found, lengths, strict=True):
                drafting.length = length

    def drafts(self, seq: Sequence, limit: int) -> Drafts:
        """Return the guesses allotted to a sequence; `limit` is what step and blocks have room for."""
        drafting = seq.drafting
        if drafting is None or not drafting.length:
            return NO_DRAFTS
        guess, length = drafting.guess, min(drafting.length, limit)
        drafting.guess, drafting.length = NOTHING, 0
        if length <= 0 or not guess.token_ids:
            return NO_DRAFTS
        drafting.hint, drafting.matched = None, guess.matched
        return foresee(seq, guess.token_ids[:length])

    def note(self, seq: Sequence, num_drafts: int, num_accepted: int) -> None:
        """Note how many of a sequence's guesses came true."""
        self.num_draws += 1
        self.num_drafted += num_drafts
        self.num_accepted += num_accepted
        self.credit.came_true(num_accepted, self._num_checked)
        if seq.drafting is not None:
            seq.drafting.acceptance.note(num_accepted, num_drafts, seq.drafting.matched)

    def observe(self, plan: StepPlan, step_ms: float) -> None:
        """Note what a step of answers took."""
        if step_ms <= 0:
            return
        num_sequences = len(plan.sequences)
        num_drafts = sum(item.num_drafts for item in plan.sequences)
        plain_ms = self.times.plain_ms(num_sequences)
        longer = step_ms / plain_ms - 1 if plain_ms else 0.0
        if num_drafts:
            self._num_checked = num_sequences
            self._settles = 1 if self.overlaps else 0
            self.times.note_check(num_sequences, num_drafts, step_ms)
            self.credit.charge(longer)
            return
        self.credit.plain_step()
        if self._settles and self.overlaps:
            self._settles -= 1
            self.times.note_plain(num_sequences, step_ms, rough=True)
            self.credit.charge(longer)
        else:
            self.times.note_plain(num_sequences, step_ms)

    def _may_gain(self, num_sequences: int, limit: int) -> bool:
        """Whether it is of any use to look for guesses; where the best of them would not pay, only now and then."""
        if not self._adaptive:
            return True
        if self.times.wants_plain(num_sequences):
            return False
        rows = min(limit, self.times.reach(num_sequences))
        if self.times.extra(num_sequences)(rows) * num_sequences < rows:
            return True
        self._doubt(num_sequences)
        return self._num_doubts % _NOW_AND_THEN == 0

    def _lengths(self, chances: list[list[float]], limit: int, num_sequences: int) -> list[int]:
        """Return how many guesses of each sequence are worth their time."""
        if self.credit.spent:
            return [0] * len(chances)
        limit = min(limit, self.times.reach(num_sequences))
        lengths, gain = best(chances, self.times.extra(num_sequences), num_sequences, limit)
        if gain <= 0 and any(own and own[0] >= _SURE for own in chances):
            self._doubt(num_sequences)
        return lengths

    def _doubt(self, num_sequences: int) -> None:
        """Note that guesses were too dear; after a while what they cost is asked anew."""
        self._num_doubts += 1
        if self._num_doubts >= (_FIRST_DOUBTS if self.times.hasty(num_sequences) else _DOUBTS):
            self._num_doubts = 0
            self.times.fade(num_sequences)

    def _look(self, seq: Sequence, drafting: Drafting, limit: int) -> Guess:
        """Return a guess, learn for nothing from the one before if that was not computed, and note this one."""
        guess = drafting.guesser.guess(seq.token_ids, max(limit, 1))
        hint, drafting.hint = drafting.hint, None
        if hint is not None and hint[0] < seq.num_tokens:
            drafting.acceptance.note(int(seq.token_ids[hint[0]] == hint[1]), 1, hint[2])
        if guess.token_ids:
            drafting.hint = (seq.num_tokens, guess.token_ids[0], guess.matched)
        return guess


def _room(seq: Sequence) -> int:
    """Return how many guesses can come true before the token that ends the sequence anyway."""
    return seq.stop.max_tokens - seq.num_output_tokens - seq.num_pending - 1
