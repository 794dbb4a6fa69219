"""What each step computes: one token budget, shared by answers that go on and prompts that come in.

Liveness. A sequence is admitted only when the blocks of all its known tokens are there, and takes them at once, so
prefills never wait on one another. An answer that needs a block may preempt everybody behind it, so the first in the
policy's order always goes on; alone it fits the pool (admission saw to that), so it ends, and the next one is first.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from model_svc.engine.block_pool import BlockPool
from model_svc.engine.drafter import Drafter
from model_svc.engine.draw_rules import NO_DRAFTS, Drafts
from model_svc.engine.fair_share import FairShare
from model_svc.engine.plan import RunnerInfo, SequenceStep, StepPlan
from model_svc.engine.policy import SchedulingPolicy, StepCosts, StepLoad
from model_svc.engine.sequence import Sequence, Status
from model_svc.engine.share import share_of

_KEY = attrgetter("key")


class ScheduledStep(NamedTuple):
    """A plan with the sequences it is about, item by item, and their epochs when it was made."""

    plan: StepPlan
    sequences: list[Sequence]
    epochs: list[int]
    num_prefill_tokens: int


class Scheduler:
    """Keeps the queue and the running sequences, all in the policy's order."""

    def __init__(
        self, info: RunnerInfo, policy: SchedulingPolicy, clock: Callable[[], float], *, inter_token_ms: float = 0.0,
        drafter: Drafter | None = None,
    ) -> None:  # fmt: skip
        self.pool = BlockPool(info.num_blocks, info.block_size)
        self.costs = StepCosts()
        self.waiting: list[Sequence] = []
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.num_preemptions = 0
        self.num_prefilled_tokens = 0
        self.drafter = drafter
        self._policy = policy
        self._shares = FairShare()
        self._clock = clock
        self._token_budget = info.max_num_batched_tokens
        self._inter_token_ms = inter_token_ms
        self._max_num_seqs = info.max_num_seqs
        self._free_slots = list(range(info.max_num_seqs - 1, -1, -1))
        self._freed_slots: set[int] = set()
        self._arrivals = 0
        self._step = 0
        self._items: list[SequenceStep] = []
        self._planned: list[Sequence] = []

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        # Choices of a request share its prompt: the first one pays for it.
        seq.mark = self._shares.mark(seq.request.tenant, seq.num_prompt_tokens if seq.choice == 0 else 0)
        seq.key = self._policy.key(seq.request.priority, seq.mark, self._arrivals)
        self._arrivals += 1
        insort(self.waiting, seq, key=_KEY)

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

    def schedule(self) -> ScheduledStep | None:
        """Plan the next step; None when there is nothing to compute."""
        self._items, self._planned = [], []
        share = self._policy.prefill_share(self._load())
        num_preemptions = self.num_preemptions
        if self._policy.prefill_first:
            decoding = self._make_room()
            num_prefill_tokens = self._plan_prompts(share, admit=self.num_preemptions == num_preemptions)
            self._plan_decodes(decoding, self._token_budget - num_prefill_tokens)
        else:
            left = self._token_budget - self._plan_decodes(tuple(self.decoding), self._token_budget)
            admit = self.num_preemptions == num_preemptions
            num_prefill_tokens = self._plan_prompts(min(share, left), admit=admit)
        return self._close_plan(num_prefill_tokens) if self._items else None

    def num_waiting_tokens(self) -> int:
        """How many known tokens are still to be computed before their sequences can go on."""
        queued = sum(seq.num_tokens for seq in self.waiting)
        return queued + sum(seq.num_tokens - seq.num_computed_tokens for seq in self.prefilling)

    def register_blocks(self, seq: Sequence, num_tokens: int) -> None:
        """Make the full blocks among the first `num_tokens`, computed and collected, known to the prefix cache."""
        num_full = num_tokens // self.pool.block_size
        if num_full > seq.num_registered:
            names = seq.hashes(num_full, self.pool.block_size)
            for index in range(seq.num_registered, num_full):
                self.pool.register(seq.block_table[index], names[index])
            seq.num_registered = num_full

    def check_invariants(self) -> None:
        """Assert that queues, slots and blocks agree."""
        running = self.prefilling + self.decoding
        self.pool.check_invariants(seq.block_table for seq in running)
        assert all(seq.status is Status.RUNNING and seq.slot >= 0 for seq in running)
        assert all(seq.status is Status.WAITING and seq.slot < 0 and not seq.block_table for seq in self.waiting)
        slots = [seq.slot for seq in running] + self._free_slots
        assert sorted(slots) == list(range(self._max_num_seqs)), "a slot leaked or is held twice"
        for queue in (self.waiting, self.prefilling, self.decoding):
            assert all(a.key < b.key for a, b in pairwise(queue)), "a queue out of order"
        for seq in running:
            room = len(seq.block_table) * self.pool.block_size
            assert seq.num_computed_tokens <= min(room, seq.num_tokens + seq.num_pending)
            assert seq.num_registered * self.pool.block_size <= seq.num_computed_tokens

    def _load(self) -> StepLoad:
        costs = self.costs
        return StepLoad(
            self._token_budget, len(self.decoding), costs.decode_step_ms, costs.prefill_token_ms, self._inter_token_ms
        )

    def _make_room(self) -> tuple[Sequence, ...]:
        """Get every running answer the blocks it wants before prompts take them; returns those still running."""
        for seq in tuple(self.decoding):
            num_missing = len(seq.token_ids) + seq.num_pending - len(seq.block_table) * self.pool.block_size
            if seq.status is Status.RUNNING and num_missing > 0:
                self._grow(seq, len(seq.token_ids) + seq.num_pending - seq.num_computed_tokens)
        return tuple(self.decoding)

    def _plan_decodes(self, decoding: tuple[Sequence, ...], budget: int) -> int:
        """Give running answers their next token, in order; who needs a block may take it from the last ones."""
        left = budget
        drafter = self.drafter
        if drafter is not None and any(seq.num_drafts for seq in decoding):
            return 0  # all wait for guesses in flight: else those that draft and the others would take turns
        # Room for guesses: nobody's next token waits for them.
        spare = min(budget - len(decoding), drafter.max_drafts) if drafter is not None else 0
        for seq in decoding:
            if left <= 0:
                break
            if seq.status is not Status.RUNNING:
                continue  # preempted by one before it
            if seq.num_pending and seq.num_output_tokens + seq.num_pending >= seq.stop.max_tokens:
                continue  # the samples in flight end it, whatever they are
            waits = seq.num_pending and drafter is not None and drafter.waits(seq, len(decoding))
            if waits or seq.num_pending > seq.max_pending:
                continue  # the next draw, or a guess behind it, hangs on what they are
            end = len(seq.token_ids) + seq.num_pending
            num_tokens = min(end - seq.num_computed_tokens, left)
            has_room = seq.num_computed_tokens + num_tokens <= len(seq.block_table) * self.pool.block_size
            if not has_room and not self._grow(seq, num_tokens):
                continue
            left -= num_tokens
            wants = spare > 0 and num_tokens == 1 and not seq.num_pending
            drafts = self._drafts(seq, min(spare, left), len(decoding)) if wants else NO_DRAFTS
            left -= len(drafts.token_ids)
            spare -= len(drafts.token_ids)
            self._plan(seq, num_tokens, drafts)
        return budget - left

    def _drafts(self, seq: Sequence, spare: int, num_sequences: int) -> Drafts:
        """Return guesses to check with a sequence's last token. They take a block only if everybody has one to come."""
        assert self.drafter is not None
        pool = self.pool
        room = len(seq.block_table) * pool.block_size - seq.num_tokens
        free = pool.num_free - len(self.prefilling) - len(self.decoding)
        drafts = self.drafter.drafts(seq, min(spare, room + max(0, free) * pool.block_size), num_sequences)
        seq.block_table += pool.allocate(max(0, -(-(len(drafts.token_ids) - room) // pool.block_size)))
        return drafts

    def _plan_prompts(self, budget: int, *, admit: bool) -> int:
        """Go on with running prompts, then start waiting ones, unless blocks are so short that one was preempted."""
        num_tokens = self._plan_prefills(budget)
        return num_tokens + (self._admit(budget - num_tokens) if admit else 0)

    def _plan_prefills(self, budget: int) -> int:
        left = budget
        for seq in tuple(self.prefilling):
            if left <= 0:
                break
            num_tokens = min(seq.num_tokens - seq.num_computed_tokens, left)
            self._plan(seq, num_tokens)
            left -= num_tokens
            if seq.num_pending:
                self.prefilling.remove(seq)
                insort(self.decoding, seq, key=_KEY)
        return budget - left

    def _admit(self, budget: int) -> int:
        """Start waiting sequences in order; the first that does not fit holds back those behind it."""
        left = budget
        if not self._free_slots:
            return 0
        for seq in tuple(self.waiting):
            if left <= 0 or not self._free_slots:
                break
            if seq.num_inflight or seq.waits:
                continue
            if not self._start(seq):
                break
            num_tokens = min(seq.num_tokens - seq.num_computed_tokens, left)
            self._plan(seq, num_tokens)
            left -= num_tokens
            insort(self.decoding if seq.num_pending else self.prefilling, seq, key=_KEY)
        return budget - left

    def _start(self, seq: Sequence) -> bool:
        """Give a waiting sequence its slot and all blocks for its known tokens, cached ones first, or nothing."""
        pool = self.pool
        # The last token is always computed, even if its block is cached: its logits are what we want.
        hits: list[int] = []
        if seq.prompt_scores is None or seq.prompt_scores.complete:
            hits = pool.match(seq.hashes((seq.num_tokens - 1) // pool.block_size, pool.block_size))
        num_new = -(-seq.num_tokens // pool.block_size) - len(hits)
        # Leave each running sequence room for one more block: or it would preempt the newcomer in its next steps.
        reserve = len(self.prefilling) + len(self.decoding)
        if num_new + reserve > pool.num_free_without(hits):
            return False
        pool.take(hits)
        seq.block_table = hits + pool.allocate(num_new)
        seq.num_registered = len(hits)
        seq.num_computed_tokens = len(hits) * pool.block_size
        if seq.num_cached_tokens < 0:
            seq.num_cached_tokens = min(seq.num_computed_tokens, seq.num_prompt_tokens)
            seq.first_scheduled_at = self._clock()
        self.waiting.remove(seq)
        self._shares.start(seq.mark)
        seq.status = Status.RUNNING
        seq.slot = self._free_slots.pop()
        seq.resync = True
        return True

    def _grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Give a running sequence the blocks for its next tokens; False if it was itself the last one and had to go."""
        pool = self.pool
        num_new = -(-(seq.num_computed_tokens + num_tokens) // pool.block_size) - len(seq.block_table)
        while pool.num_free < num_new:
            victim = self._last_running()
            self._preempt(victim)
            if victim is seq:
                return False
        seq.block_table += pool.allocate(num_new)
        return True

    def _last_running(self) -> Sequence:
        tails = [queue[-1] for queue in (self.prefilling, self.decoding) if queue]
        return max(tails, key=_KEY)

    def _preempt(self, seq: Sequence) -> None:
        """Send a running sequence back to the queue; what it had computed is recomputed, less what stays cached."""
        self._leave(seq)
        seq.status = Status.WAITING
        seq.num_computed_tokens = seq.num_registered = 0
        insort(self.waiting, seq, key=_KEY)
        self.num_preemptions += 1

    def _leave(self, seq: Sequence) -> None:
        queue = self.decoding if seq in self.decoding else self.prefilling
        queue.remove(seq)
        self.pool.free(seq.block_table)
        seq.block_table = []
        self._free_slots.append(seq.slot)
        self._freed_slots.add(seq.slot)
        seq.slot = -1

    def _plan(self, seq: Sequence, num_tokens: int, drafts: Drafts = NO_DRAFTS) -> None:
        """Add a sequence's share to the step that is being planned."""
        share = share_of(seq, num_tokens, drafts)
        self._items.append(share)
        self._planned.append(seq)
        seq.num_computed_tokens += num_tokens
        seq.num_inflight += 1
        if share.sample:
            seq.num_pending += 1
        if drafts is not NO_DRAFTS:
            seq.num_computed_tokens += share.num_drafts
            seq.num_pending += share.num_drafts
            seq.num_drafts = share.num_drafts

    def _close_plan(self, num_prefill_tokens: int) -> ScheduledStep:
        freed = self._freed_slots.difference(item.slot for item in self._items)
        self._freed_slots.clear()
        plan = StepPlan(step=self._step, sequences=tuple(self._items), freed_slots=tuple(sorted(freed)))
        self._step += 1
        self.num_prefilled_tokens += num_prefill_tokens
        return ScheduledStep(plan, self._planned, [seq.epoch for seq in self._planned], num_prefill_tokens)
