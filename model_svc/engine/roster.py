"""Who waits, who runs, and with which slot and blocks; all queues are in the policy's order.

Liveness. A sequence starts only when the blocks of all its known tokens are there, and takes them at once, so
prefills never wait on one another. An answer that needs a block may preempt everybody behind it, so the first in the
policy's order always goes on; alone it fits the pool (admission saw to that), so it ends, and the next one is first.
"""

from __future__ import annotations

import sys
from bisect import insort
from collections.abc import Callable
from itertools import pairwise
from operator import attrgetter

from model_svc.engine.block_pool import BlockPool
from model_svc.engine.fair_share import FairShare
from model_svc.engine.plan import RunnerInfo
from model_svc.engine.policy import SchedulingPolicy
from model_svc.engine.sequence import Sequence, Status
from model_svc.engine.states import States

KEY = attrgetter("key")

# Why a running sequence was put back: an answer before it needed a block; one of higher priority a seat, or blocks; its
# state has taken in what became void.
BLOCKS, PRIORITY_SEAT, PRIORITY_BLOCKS, VOID_STATE = "blocks", "priority_seat", "priority_blocks", "void_state"


class Roster:
    """The queue, the running sequences, the slots and the blocks."""

    def __init__(self, info: RunnerInfo, policy: SchedulingPolicy, clock: Callable[[], float]) -> None:
        self.pool = BlockPool(info.num_blocks, info.block_size)
        self.states = States(info, self.pool) if info.state_bytes else None
        self.waiting: list[Sequence] = []
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.preemptions = dict.fromkeys((BLOCKS, PRIORITY_SEAT, PRIORITY_BLOCKS, VOID_STATE), 0)
        self._policy = policy
        self._clock = clock
        self._shares = FairShare()
        # No more than a step has tokens for: else answers would leave none to a prompt that has a slot.
        self._num_slots = min(info.max_num_seqs, info.max_num_batched_tokens)
        self._free_slots = list(range(self._num_slots - 1, -1, -1))
        self._freed_slots: set[int] = set()
        self._arrivals = 0

    @property
    def num_running(self) -> int:
        """How many have a slot."""
        return len(self.prefilling) + len(self.decoding)

    @property
    def num_preemptions(self) -> int:
        """How many sequences were put back so far, for whatever reason."""
        return sum(self.preemptions.values())

    @property
    def has_slot(self) -> bool:
        """Whether one more could run."""
        return bool(self._free_slots)

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        # Choices of a request share its prompt: the first one pays for it.
        seq.mark = self._shares.mark(seq.request.tenant, seq.num_prompt_tokens if seq.choice == 0 else 0)
        seq.key = self._policy.key(seq.request.priority, seq.mark, self._arrivals)
        seq.rank = seq.request.priority if self._policy.ranked else 0
        seq.waiting_since = self._clock()
        self._arrivals += 1
        insort(self.waiting, seq, key=KEY)

    def finish(self, seq: Sequence, reason: str) -> None:
        """Take a sequence out, wherever it is; its blocks and slot are free at once.

        Steps in flight may still write to them, but runners work in order, so whoever gets them next writes later.
        """
        if seq.status is Status.WAITING:
            self.waiting.remove(seq)
        else:
            self._leave(seq)
        self._shares.charge(seq.request.tenant, seq.num_tokens - seq.num_prompt_tokens)
        seq.status = Status.FINISHED
        seq.finish_reason = reason

    def wants(self, seq: Sequence) -> tuple[list[int], int]:
        """Return the cached blocks that a waiting sequence can begin with, and how many new ones its tokens need."""
        hits = self._cached(seq)
        if self.states is not None:
            hits = hits[: self.states.snapshots.covered(seq.block_hashes[: len(hits)])]
        return hits, -(-seq.num_tokens // self.pool.block_size) - len(hits)

    def start(self, seq: Sequence) -> bool:
        """Give a waiting sequence its slot and all blocks for its known tokens, cached ones first, or nothing."""
        pool = self.pool
        hits, num_new = self.wants(seq)
        # Leave each running sequence room for one more block: or it would preempt the newcomer in its next steps.
        reserve = self.num_running
        if not self._free_slots or num_new + reserve > pool.num_free_without(hits):
            return False
        if self.states is not None:
            self.states.begin(seq, seq.block_hashes, len(hits), len(self._cached(seq)))
        pool.take(hits)
        seq.block_table = hits + pool.allocate(num_new)
        seq.num_registered = len(hits)
        seq.num_computed_tokens = len(hits) * pool.block_size
        seq.num_blocks_sent = 0
        if seq.num_cached_tokens < 0:
            seq.num_cached_tokens = min(seq.num_computed_tokens, seq.num_prompt_tokens)
            seq.first_scheduled_at = self._clock()
        self.waiting.remove(seq)
        self._shares.start(seq.mark)
        seq.status = Status.RUNNING
        seq.slot = self._free_slots.pop()
        seq.resync = True
        insort(self.prefilling, seq, key=KEY)
        return True

    def answers(self, seq: Sequence) -> None:
        """Note that all known tokens of a running sequence are computed, or in flight."""
        self.prefilling.remove(seq)
        insort(self.decoding, seq, key=KEY)
        seq.waited_s += self._clock() - seq.waiting_since

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Give a running sequence the blocks for its next tokens; False if it was itself the last one and had to go."""
        pool = self.pool
        num_new = -(-(seq.num_computed_tokens + num_tokens) // pool.block_size) - len(seq.block_table)
        while pool.num_free < num_new:
            victim = self.last_running()
            self.preempt(victim, BLOCKS)
            if victim is seq:
                return False
        seq.block_table += pool.allocate(num_new)
        return True

    def fit(self, seq: Sequence) -> None:
        """Get a prompt that has just become longer the blocks it lacks, or put it back, to start again with them all.

        Those of others it may not take: they may have a share of the step in flight, and need none of its own.
        """
        num_new = -(-seq.num_tokens // self.pool.block_size) - len(seq.block_table)
        if num_new <= 0 or seq not in self.prefilling:
            return
        if num_new + self.num_running <= self.pool.num_free:
            seq.block_table += self.pool.allocate(num_new)
        else:
            self.preempt(seq, BLOCKS)

    def last_running(self) -> Sequence:
        """Return the last in order of those that run; there must be one."""
        tails = [queue[-1] for queue in (self.prefilling, self.decoding) if queue]
        return max(tails, key=KEY)

    def preempt(self, seq: Sequence, why: str) -> None:
        """Send a running sequence back to the queue; what it had computed is recomputed, less what stays cached."""
        if seq in self.decoding:
            seq.waiting_since = self._clock()
        self._leave(seq)
        seq.status = Status.WAITING
        seq.num_computed_tokens = seq.num_registered = 0
        seq.restarted = True
        insort(self.waiting, seq, key=KEY)
        self.preemptions[why] += 1

    def put_first(self, seq: Sequence) -> None:
        """Let a sequence that does not answer yet go before all others from now on, whatever their priority."""
        queue = self.waiting if seq.status is Status.WAITING else self.prefilling
        queue.remove(seq)
        seq.rank = -sys.maxsize
        seq.key = (seq.rank, *seq.key[1:])
        insort(queue, seq, key=KEY)

    def register_blocks(self, seq: Sequence, num_tokens: int) -> None:
        """Make the full blocks among the first `num_tokens`, computed and collected, known to the prefix cache."""
        num_full = num_tokens // self.pool.block_size
        if num_full > seq.num_registered:
            names = seq.hashes(num_full, self.pool.block_size)
            for index in range(seq.num_registered, num_full):
                self.pool.register(seq.block_table[index], names[index])
            seq.num_registered = num_full

    def take_freed_slots(self) -> set[int]:
        """Return the slots that the runner knows and that were left since the last call."""
        freed, self._freed_slots = self._freed_slots, set()
        return freed

    def num_waiting_tokens(self) -> int:
        """How many known tokens are still to be computed before their sequences can go on."""
        queued = sum(seq.num_tokens for seq in self.waiting)
        return queued + sum(seq.num_tokens - seq.num_computed_tokens for seq in self.prefilling)

    def check_invariants(self) -> None:
        """Assert that queues, slots and blocks agree."""
        running = self.prefilling + self.decoding
        self.pool.check_invariants(seq.block_table for seq in running)
        if self.states is not None:
            self.states.check_invariants(running)
        assert all(seq.status is Status.RUNNING and seq.slot >= 0 for seq in running)
        assert all(seq.status is Status.WAITING and seq.slot < 0 and not seq.block_table for seq in self.waiting)
        slots = [seq.slot for seq in running] + self._free_slots
        assert sorted(slots) == list(range(self._num_slots)), "a slot leaked or is held twice"
        for queue in (self.waiting, self.prefilling, self.decoding):
            assert all(a.key < b.key for a, b in pairwise(queue)), "a queue out of order"
        for seq in running:
            room = len(seq.block_table) * self.pool.block_size
            assert seq.num_computed_tokens <= min(room, seq.num_tokens + seq.num_pending)
            assert seq.num_registered * self.pool.block_size <= seq.num_computed_tokens

    def _cached(self, seq: Sequence) -> list[int]:
        """Return the cached blocks of a waiting sequence's known tokens."""
        # The last token is always computed, even if its block is cached: its logits are what we want.
        if seq.prompt_scores is not None and not seq.prompt_scores.complete:
            return []
        return self.pool.match(seq.hashes((seq.num_tokens - 1) // self.pool.block_size, self.pool.block_size))

    def _leave(self, seq: Sequence) -> None:
        queue = self.decoding if seq in self.decoding else self.prefilling
        queue.remove(seq)
        self.pool.free(seq.block_table)
        seq.block_table = []
        if self.states is not None:
            self.states.leave(seq)
        self._free_slots.append(seq.slot)
        if seq.num_blocks_sent:  # else the runner has never heard of it
            self._freed_slots.add(seq.slot)
        seq.slot = -1
