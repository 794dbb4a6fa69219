"""What each step computes: one token budget, shared by answers that go on and prompts that come in.

Who waits and who runs, slots and blocks are the roster's; whom priorities move, precedence's. Here steps are planned:
every running answer gets its token, prompts share what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from model_svc.engine.drafter import Drafter
from model_svc.engine.draw_rules import NO_DRAFTS, Drafts
from model_svc.engine.kv_tier import Kept
from model_svc.engine.pictures import Pictures, whole
from model_svc.engine.plan import RunnerInfo, SequenceStep, StepPlan
from model_svc.engine.policy import SchedulingPolicy, StepCosts, StepLoad
from model_svc.engine.precedence import Precedence
from model_svc.engine.prompt_split import floor, split
from model_svc.engine.recall import Recall
from model_svc.engine.roster import VOID_STATE, Roster
from model_svc.engine.sequence import Sequence, Status
from model_svc.engine.share import share_of


class ScheduledStep(NamedTuple):
    """A plan with the sequences it is about, item by item, and their epochs when it was made."""

    plan: StepPlan
    sequences: list[Sequence]
    epochs: list[int]
    num_prefill_tokens: int


class Scheduler:
    """Plans steps over the sequences of a roster."""

    def __init__(
        self, info: RunnerInfo, policy: SchedulingPolicy, clock: Callable[[], float], *, inter_token_ms: float = 0.0,
        drafter: Drafter | None = None, patience_s: float = 30.0, kept: Kept | None = None,
    ) -> None:  # fmt: skip
        """`kept` is what a second tier holds from before the start."""
        self.roster = Roster(info, policy, clock)
        self.pictures = Pictures(info.max_features)
        self._whole_pictures = info.whole_pictures
        self.costs = StepCosts()
        self.recall: Recall | None = None
        if info.num_tier_blocks:
            self.recall = Recall(self.roster, self.roster.pool.keep_beside(info, kept), self.costs)
        self.num_prefilled_tokens = 0
        self.drafter = drafter
        if drafter is not None:
            drafter.overlaps = info.depth > 0
        self._precedence = Precedence(self.roster, clock, patience_s)
        self._policy = policy
        self._token_budget = info.max_num_batched_tokens
        self._stages = info.stages
        self._inter_token_ms = inter_token_ms
        self._step = 0
        self._items: list[SequenceStep] = []
        self._planned: list[Sequence] = []

    def schedule(self) -> ScheduledStep | None:
        """Plan the next step; None when there is nothing to compute."""
        self._items, self._planned = [], []
        roster = self.roster
        share = self._policy.prefill_share(self._load())
        num_preemptions = roster.num_preemptions
        if roster.waiting or roster.prefilling:
            self._precedence.make_way(share)
        # Whoever was preempted in this step is behind in the queue: what it left is not for those behind it.
        if self._policy.prefill_first:
            decoding = self._make_room()
            num_prefill_tokens = self._plan_prompts(share, admit=roster.num_preemptions == num_preemptions)
            self._plan_decodes(decoding, self._token_budget - num_prefill_tokens)
        else:
            left = self._token_budget - self._plan_decodes(self._turn(), self._token_budget)
            admit = roster.num_preemptions == num_preemptions
            num_prefill_tokens = self._plan_prompts(min(share, left), admit=admit)
        return self._close_plan(num_prefill_tokens)

    def _load(self) -> StepLoad:
        costs, num_decoding = self.costs, len(self.roster.decoding)
        return StepLoad(
            self._token_budget, num_decoding, costs.decode_step_ms, costs.prefill_token_ms, self._inter_token_ms
        )

    def _make_room(self) -> tuple[Sequence, ...]:
        """Get every running answer the blocks it wants before prompts take them; returns whose turn it is."""
        for seq in tuple(self.roster.decoding):
            num_missing = len(seq.token_ids) + seq.num_pending - len(seq.block_table) * self.roster.pool.block_size
            if seq.status is Status.RUNNING and num_missing > 0:
                self.roster.grow(seq, len(seq.token_ids) + seq.num_pending - seq.num_computed_tokens)
        return self._turn()

    def _turn(self) -> tuple[Sequence, ...]:
        """Return the answers that may have a token in this step: all, or those whose turn it is.

        With several stages an answer's next token is planned when its last one has been read, and a step takes one
        stage's part of the answers. So the plans in flight share none, each knows all its ids, and every stage is busy.
        Chunks of a prompt need nothing that is drawn: they follow one another through the stages.
        """
        decoding = self.roster.decoding
        if self._stages == 1:
            return tuple(decoding)
        part = -(-len(decoding) // self._stages)
        return tuple([seq for seq in decoding if not seq.num_inflight][:part])

    def _plan_decodes(self, decoding: tuple[Sequence, ...], budget: int) -> int:
        """Give running answers their next token, in order; who needs a block may take it from the last ones."""
        left = budget
        spare = self._spare(budget - len(decoding))
        if self._waits(decoding, spare):
            return 0
        block_size = self.roster.pool.block_size
        for seq in decoding:
            if left <= 0:
                break
            if seq.status is not Status.RUNNING:
                continue  # preempted by one before it
            if self._starts_again(seq):
                continue
            pending = seq.num_pending
            if pending and seq.num_output_tokens + pending >= seq.stop.max_tokens:
                continue  # the samples in flight end it, whatever they are
            if pending and not seq.free and pending > seq.max_pending:
                continue  # the next draw hangs on what they are
            if pending and seq.grammar is not None and self.roster.states is not None:
                continue  # tokens that a grammar forces would make the draws in flight void, and a state with them
            start = seq.num_computed_tokens
            num_tokens = len(seq.token_ids) + pending - start
            if num_tokens != 1:  # as it most often is
                num_tokens = min(num_tokens, left)
            if start + num_tokens > len(seq.block_table) * block_size and not self.roster.grow(seq, num_tokens):
                continue
            left -= num_tokens
            drafts = NO_DRAFTS
            if spare > 0 and num_tokens == 1 and not pending:
                drafts = self._drafts(seq, min(spare, left))
                left -= len(drafts.token_ids)
                spare -= len(drafts.token_ids)
            self._plan(seq, num_tokens, drafts)
        return budget - left

    def _waits(self, decoding: tuple[Sequence, ...], spare: int) -> bool:
        """Whether nobody's next token is planned before what is in flight has been read; else guesses are allotted."""
        drafter = self.drafter
        if drafter is None:
            return False
        if any(seq.num_drafts for seq in decoding):
            return True  # all wait for guesses in flight: else those that draft and the others would take turns
        if drafter.waits(decoding, spare, len(decoding)):
            return True
        drafter.allot(decoding, spare, len(decoding))
        return False

    def _spare(self, num_tokens: int) -> int:
        """Return the room for guesses: no answer's next token waits for them, nor do prompts."""
        if self.drafter is None:
            return 0
        prompts = self.roster.prefilling or self.roster.waiting
        return min(num_tokens // 2 if prompts else num_tokens, self.drafter.max_drafts)

    def _drafts(self, seq: Sequence, spare: int) -> Drafts:
        """Return guesses to check with a sequence's last token. They take a block only if everybody has one to come."""
        assert self.drafter is not None
        pool = self.roster.pool
        room = len(seq.block_table) * pool.block_size - seq.num_tokens
        free = pool.num_free - self.roster.num_running
        drafts = self.drafter.drafts(seq, min(spare, room + max(0, free) * pool.block_size))
        seq.block_table += pool.allocate(max(0, -(-(len(drafts.token_ids) - room) // pool.block_size)))
        return drafts

    def _plan_prompts(self, budget: int, *, admit: bool) -> int:
        """Start waiting prompts, unless somebody was preempted, then share the budget among all that are not done."""
        roster, recall = self.roster, self.recall
        if recall is not None:
            recall.begin()
            for seq in roster.prefilling:
                recall.load(seq)
        if admit and roster.waiting:
            self._admit(budget)
        if not roster.prefilling:
            return 0
        prompts = [
            seq
            for seq in tuple(roster.prefilling)
            if (recall is None or not recall.waits(seq)) and not self._starts_again(seq)
        ]
        rests = [seq.num_tokens - seq.num_computed_tokens for seq in prompts]
        shares = split(budget, [seq.rank for seq in prompts], rests)
        num_planned = 0
        for seq, share in zip(prompts, shares, strict=True):
            num_tokens = share if roster.states is None else roster.states.limit(seq, share)
            if self._whole_pictures:
                room = self._token_budget - sum([item.num_tokens for item in self._items])
                num_tokens = whole(seq.pictures, seq.num_computed_tokens, num_tokens, room)
            if num_tokens > 0:
                self._plan(seq, num_tokens)
                num_planned += num_tokens
                if seq.num_pending:
                    roster.answers(seq)
        return num_planned

    def _admit(self, budget: int) -> None:
        """Start waiting sequences in order while running prompts leave tokens; who does not fit holds back the rest."""
        roster = self.roster
        claim = floor(budget)
        left = budget - sum(min(seq.num_tokens - seq.num_computed_tokens, claim) for seq in roster.prefilling)
        at = 0
        while left > 0 and roster.has_slot and at < len(roster.waiting):
            seq = roster.waiting[at]
            if seq.waits:
                at += 1
                continue
            if seq.num_inflight or not roster.start(seq):
                return  # preempted a moment ago, or without blocks
            if self.recall is not None:
                self.recall.load(seq)
            left -= min(seq.num_tokens - seq.num_computed_tokens, claim)

    def _plan(self, seq: Sequence, num_tokens: int, drafts: Drafts = NO_DRAFTS) -> None:
        """Add a sequence's share to the step that is being planned."""
        share = share_of(seq, num_tokens, drafts)
        states = self.roster.states
        if states is not None and (said := states.plan(seq, share.start + num_tokens)):
            share = msgspec.structs.replace(share, **said)
        if seq.pictures and (said := self.pictures.plan(seq.pictures, share.start, share.start + share.num_tokens)):
            share = msgspec.structs.replace(share, **said)
        self._items.append(share)
        self._planned.append(seq)
        seq.num_computed_tokens += num_tokens
        seq.num_inflight += 1
        if share.sample:
            seq.num_pending += 1
        if share.num_drafts:
            seq.num_computed_tokens += share.num_drafts
            seq.num_pending += share.num_drafts
            seq.num_drafts = share.num_drafts

    def _starts_again(self, seq: Sequence) -> bool:
        """Put a sequence back whose state has taken in tokens that are void; it goes on from its last snapshot."""
        states = self.roster.states
        if states is None or not states.is_behind(seq):
            return False
        self.roster.preempt(seq, VOID_STATE)
        return True

    def _close_plan(self, num_prefill_tokens: int) -> ScheduledStep | None:
        """Return the plan that was made; None if it is empty."""
        items, tier = self._items, self.roster.pool.tier
        saves, loads = tier.close_plan(idle=not items) if tier is not None else ((), ())
        if not items and not saves and not loads:
            return None
        freed = self.roster.take_freed_slots().difference(item.slot for item in items)
        if self.roster.states is not None:
            self.roster.states.planned()
        pictures, forgotten = self.pictures.close_plan()
        plan = StepPlan(
            step=self._step, sequences=tuple(items), freed_slots=tuple(sorted(freed)), saves=saves, loads=loads,
            pictures=pictures, forgotten=forgotten,
        )  # fmt: skip
        self._step += 1
        self.num_prefilled_tokens += num_prefill_tokens
        return ScheduledStep(plan, self._planned, [seq.epoch for seq in self._planned], num_prefill_tokens)
