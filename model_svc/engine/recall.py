"""Brings the blocks of prompts back from the second tier where copying them is faster than computing them.

A block that comes back is one that is computed, at no cost of tokens: a prompt whose first blocks are kept begins
behind them. Nothing is promised when it starts, so nothing is held there for it: what is gone meanwhile is computed.
"""

from __future__ import annotations

from model_svc.engine.kv_tier import KvTier
from model_svc.engine.policy import StepCosts
from model_svc.engine.roster import Roster
from model_svc.engine.sequence import Sequence

# What copies may add to the time between two tokens of the answers that run beside them.
_COPY_MS = 8.0


class Recall:
    """Plans loads for the prompts of a roster."""

    def __init__(self, roster: Roster, tier: KvTier, costs: StepCosts) -> None:
        self._roster = roster
        self._tier = tier
        self._costs = costs
        self._room = 0
        self._waiting: set[Sequence] = set()

    def begin(self) -> None:
        """Begin a step. Where no answer waits for it, it may copy as much as it likes."""
        self._waiting.clear()
        self._room = self._tier.num_places
        if self._roster.decoding and self._tier.block_ms > 0:
            self._room = max(1, int(_COPY_MS / self._tier.block_ms))

    def waits(self, seq: Sequence) -> bool:
        """Whether more of a prompt is to be loaded in the next step, so that it computes nothing in this one."""
        return seq in self._waiting

    def load(self, seq: Sequence) -> None:
        """Have the next blocks of a prompt loaded before this step, up to the first that is in neither tier.

        Only before it computes anything: positions that a runner has begun with follow one another.
        """
        size = self._roster.pool.block_size
        if seq.num_blocks_sent:
            return
        if seq.prompt_scores is not None and not seq.prompt_scores.complete:
            return  # logits of all positions are wanted
        begin = at = seq.num_computed_tokens // size
        # The last token is always computed.
        names = seq.hashes((seq.num_tokens - 1) // size, size)
        while at < len(names) and (self._shares(seq, at, names[at]) or self._loads(seq, at, names[at])):
            at += 1
        self._go_on(seq, (at - begin) * size)

    def _shares(self, seq: Sequence, at: int, name: bytes) -> bool:
        """Take a block that is on the device, behind others that are not: a peer may have sent it."""
        pool = self._roster.pool
        block = pool.find(name)
        if block is None:
            return False
        pool.take([block])
        pool.free([seq.block_table[at]])
        seq.block_table[at] = block
        return True

    def _loads(self, seq: Sequence, at: int, name: bytes) -> bool:
        if not self._pays or not self._tier.has(name):
            return False
        if not self._room:
            self._waiting.add(seq)
            return False
        self._room -= 1
        self._tier.load(name, seq.block_table[at])
        self._roster.pool.register(seq.block_table[at], name)
        return True

    @property
    def _pays(self) -> bool:
        compute_ms = self._costs.prefill_token_ms * self._roster.pool.block_size
        return compute_ms <= 0 or self._tier.block_ms < compute_ms

    def _go_on(self, seq: Sequence, num_tokens: int) -> None:
        seq.num_computed_tokens += num_tokens
        if not seq.restarted:
            seq.num_cached_tokens = min(seq.num_computed_tokens, seq.num_prompt_tokens)
