"""Who makes way for whom: a sequence of higher priority does not wait for a seat that one of lower priority holds.

It preempts the lowest in rank, latest come, as few as it takes, and only if that lets it start at once; never equals.
What was preempted is recomputed like any other, from the blocks that are still cached.

Nobody starves. Whom higher priorities have kept without a token for `patience_s` altogether, times of several
preemptions added up, goes before everybody until it ends: one such at a time. It is a floor of one seat, no ageing of
all: under an overload of high priority ageing turns the queue into one by arrival, just when priority is needed. So a
preempted sequence cannot be preempted for ever either.
"""

from __future__ import annotations

from collections.abc import Callable

from model_svc.engine.roster import KEY, PRIORITY_BLOCKS, PRIORITY_SEAT, Roster
from model_svc.engine.sequence import Sequence

_LOOKS = 8  # for the one who waits too long, in the time of patience: the queue may be long


class Precedence:
    """Applies ranks to those who already run."""

    def __init__(self, roster: Roster, clock: Callable[[], float], patience_s: float) -> None:
        self._roster = roster
        self._clock = clock
        self._patience_s = patience_s
        self._next_look = 0.0
        self._elder: Sequence | None = None

    def make_way(self, prefill_share: int) -> None:
        """Start waiting sequences for whom lower ones must go, as long as a step has tokens for their prompts."""
        roster = self._roster
        at = 0
        self._look_for_elder()
        while at < len(roster.waiting) and roster.num_running:
            seq = roster.waiting[at]
            if seq.rank >= roster.last_running().rank or seq.num_inflight:
                return
            if seq.waits:
                at += 1
                continue
            prompts = sum(one.num_tokens - one.num_computed_tokens for one in roster.prefilling if one.rank <= seq.rank)
            victims = self._victims(seq) if prompts < prefill_share else None
            if victims is None:
                return
            for victim in victims:
                roster.preempt(victim, PRIORITY_BLOCKS if roster.has_slot else PRIORITY_SEAT)
            started = roster.start(seq)
            assert started, "preempted in vain"

    def _victims(self, seq: Sequence) -> list[Sequence] | None:
        """Return who must go before a sequence can start, most often nobody; None: that would not help."""
        roster = self._roster
        hits, num_new = roster.wants(seq)
        num_free = roster.pool.num_free_without(hits)
        num_running = roster.num_running
        victims: list[Sequence] = []
        if roster.has_slot and num_new + num_running <= num_free:
            return victims
        lower = [one for one in roster.prefilling + roster.decoding if one.rank > seq.rank]
        if num_new + num_running - len(lower) > num_free + sum(len(one.block_table) for one in lower):
            return None
        let_go = roster.pool.if_freed(hits)
        for one in sorted(lower, key=KEY, reverse=True):
            victims.append(one)
            num_free += let_go(one.block_table)
            num_running -= 1
            if num_new + num_running <= num_free:
                return victims
        return None

    def _look_for_elder(self) -> None:
        """Put the one first who has waited longest, and too long, behind others of better rank."""
        roster = self._roster
        if self._elder is not None and not self._elder.finished:
            return
        queues = [queue for queue in (roster.waiting, roster.prefilling, roster.decoding) if queue]
        best = min(queue[0].rank for queue in queues)
        now = self._clock()
        if max(queue[-1].rank for queue in queues) == best or now < self._next_look:
            return
        self._next_look = now + self._patience_s / _LOOKS
        kept = [seq for seq in roster.waiting + roster.prefilling if seq.rank > best and not seq.waits]
        if kept:
            eldest = max(kept, key=lambda seq: seq.waited_s - seq.waiting_since)
            if now - eldest.waiting_since + eldest.waited_s >= self._patience_s:
                self._elder = eldest
                roster.put_first(eldest)
