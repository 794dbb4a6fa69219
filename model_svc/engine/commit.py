"""What a collected step means: tokens join their sequences, stop rules and think budgets are applied, chunks go out."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from model_svc.engine.boundary import Landing
from model_svc.engine.chunk import chunk_of, next_token
from model_svc.engine.draw_rules import jump_of, leaves_nothing
from model_svc.engine.energy import EnergyShares
from model_svc.engine.grammar import AnswerGrammar
from model_svc.engine.plan import SampledToken, SequenceStep, StepOutput
from model_svc.engine.reasoning import ReasoningTracker
from model_svc.engine.scheduler import ScheduledStep, Scheduler
from model_svc.engine.sequence import Sequence, Status
from wire.messages import TokenChunk, TokenLogprob

_CERTAIN = TokenLogprob(0.0)  # of forced tokens


class Committer:
    """Brings step outputs back to sequences. Every sequence leaves through `finish`, with a last chunk."""

    def __init__(
        self, scheduler: Scheduler, clock: Callable[[], float], vocab_size: int, energy: EnergyShares | None = None
    ) -> None:
        self.energy = energy
        self._vocab_size = vocab_size
        self._scheduler = scheduler
        self._clock = clock
        self._committed_at = 0.0

    def commit(self, scheduled: ScheduledStep, output: StepOutput) -> list[TokenChunk]:
        """Apply one step's output and return its chunks, in the order of the plan."""
        now = self._clock()
        self._observe(scheduled, output, now)
        chunks: list[TokenChunk] = []
        failed = output.failed_slots
        tokens, at, num_tokens = output.tokens, 0, len(output.tokens)
        targets = {found.slot: found.entries for found in output.targets}
        roster = self._scheduler.roster
        block_size, stateless = roster.pool.block_size, roster.states is None
        for item, seq, epoch in zip(scheduled.plan.sequences, scheduled.sequences, scheduled.epochs, strict=True):
            begin, slot = at, item.slot
            while at < num_tokens and tokens[at].slot == slot:
                at += 1
            seq.num_inflight -= 1
            if item.save >= 0:
                self._keep_state(item, seq, good=slot not in failed and seq.epoch == epoch)
            if seq.status is Status.FINISHED:
                continue  # it ended, or was cancelled, while this step was in flight
            if slot in failed:
                chunks.append(self._fail(seq))
                continue
            if slot in targets and seq.prompt_scores is not None:
                seq.prompt_scores.note(item.start, targets[slot])
            if seq.epoch != epoch:
                continue  # the draw is void: forced tokens took its place
            num_drafts = item.num_drafts
            end = item.start + item.num_tokens - num_drafts
            if stateless and end >= (seq.num_registered + 1) * block_size and seq.status is Status.RUNNING:
                roster.register_blocks(seq, end)
            if item.sample:
                seq.num_pending -= 1 + num_drafts
                if seq.plain and seq.started_output and at == begin + 1 and not num_drafts:
                    chunks.append(self._accept_plain(seq, tokens[begin].token_id))
                elif (chunk := self._accept(seq, tokens[begin:at], num_drafts, now)) is not None:
                    chunks.append(chunk)
        assert at == num_tokens, "the runner's output does not follow the plan"
        return chunks

    def _keep_state(self, item: SequenceStep, seq: Sequence, *, good: bool) -> None:
        """Name a snapshot that was written, and with it the blocks before it."""
        roster = self._scheduler.roster
        assert roster.states is not None
        end = roster.states.written(seq, item, good=good and seq.status is Status.RUNNING)
        if end:
            roster.register_blocks(seq, end)

    def finish(self, seq: Sequence, reason: str) -> TokenChunk:
        """End a sequence now; what was held back goes out with the last chunk."""
        self._scheduler.roster.finish(seq, reason)
        if seq.reasoning is not None:
            seq.reasoning.end()
        if self.energy is not None:
            self.energy.end(seq)
        return chunk_of(seq, self._clock(), self._used(seq))

    def _used(self, seq: Sequence) -> float | None:
        return self.energy.so_far(seq) if self.energy is not None else None

    def force_close(self, seq: Sequence, ended_by: str) -> bool:
        """Close the open think block; returns whether these were the last tokens the sequence may have."""
        assert seq.reasoning is not None
        if ended_by == "client":
            seq.closed_at = seq.num_output_tokens
        forced = self._put(seq, seq.reasoning.close_ids)
        if not forced and seq.num_pending and seq.grammar is not None:
            seq.void_draws()  # planned while thinking went on, they know nothing of the grammar
        seq.reasoning.force(forced, ended_by)
        return seq.num_output_tokens >= seq.stop.max_tokens

    def _land(self, seq: Sequence, landing: Landing) -> bool:
        """Put what must follow behind the token that was drawn; returns as `force_close` does."""
        assert seq.reasoning is not None
        seq.reasoning.land(self._put(seq, landing.rest), landing.ended_by)
        return seq.num_output_tokens >= seq.stop.max_tokens

    @staticmethod
    def _put(seq: Sequence, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Add tokens of ours, as many as the sequence may have, and return them."""
        forced = token_ids[: max(0, seq.stop.max_tokens - seq.num_output_tokens)]
        if forced:
            seq.jump(forced)
        if seq.request.sampling.logprobs is not None:
            seq.logprobs += [_CERTAIN] * len(forced)
        return forced

    def _observe(self, scheduled: ScheduledStep, output: StepOutput, now: float) -> None:
        scheduler = self._scheduler
        if not scheduled.sequences:
            return  # blocks were copied, nothing was computed
        scheduler.costs.observe(output.compute_ms, scheduled.num_prefill_tokens)
        if self.energy is not None:
            self.energy.note_step(scheduled, output.compute_ms)
        since_ms, self._committed_at = (now - self._committed_at) * 1e3, now
        if scheduler.drafter is not None and not scheduled.num_prefill_tokens:
            # With the host's part, which only steps without guesses hide behind the device's; but idle time is none.
            step_ms = max(output.compute_ms, min(since_ms, 2 * output.compute_ms))
            scheduler.drafter.observe(scheduled.plan, step_ms)

    def _accept_plain(self, seq: Sequence, token_id: int) -> TokenChunk:
        """Do for one token, which no rule but the stop rule looks at, what `_accept` does; 256 of these a step."""
        seq.append(token_id)
        if token_id in seq.stop.stop_ids or seq.num_output_tokens >= seq.stop.max_tokens:
            reason = self._read(seq, token_id)
            if reason is not None:
                return self.finish(seq, reason)
        energy = self.energy
        return next_token(seq, token_id, None if energy is None else seq.energy_j + energy.price * seq.work_ms)

    def _accept(self, seq: Sequence, drawn: Seq[SampledToken], num_drafts: int, now: float) -> TokenChunk | None:
        """Append what was drawn, up to where the sequence ends or its thinking must."""
        if not seq.prefilled:
            seq.prefilled = True
            seq.first_token_at = now
        assert drawn, "the runner drew nothing for a sampling item"
        reason, epoch = None, seq.epoch
        if num_drafts:  # behind the last draw lie guesses that did not come true
            seq.num_computed_tokens = min(seq.num_computed_tokens, seq.num_tokens + len(drawn) - 1)
            seq.num_drafts = 0
        num_read = 0
        for token in drawn:
            num_read += 1
            seq.append(token.token_id)
            if seq.request.sampling.logprobs is not None:
                seq.logprobs.append(TokenLogprob(token.logprob, token.top_ids, token.top_logprobs))
            reason = self._read(seq, token.token_id)
            if reason is not None or seq.epoch != epoch:
                break  # what was drawn behind the end, or behind forced tokens, is void
        if num_drafts:
            self._note_drafts(seq, num_drafts, min(num_read, len(drawn) - 1))
        if reason is not None:
            return self.finish(seq, reason)
        if seq.reasoning is None or seq.reasoning.num_decided > seq.num_replayed:
            return chunk_of(seq, now, self._used(seq))
        return None

    def _note_drafts(self, seq: Sequence, num_drafts: int, num_accepted: int) -> None:
        seq.num_accepted_drafts += num_accepted
        seq.num_rejected_drafts += num_drafts - num_accepted
        if self._scheduler.drafter is not None:
            self._scheduler.drafter.note(seq, num_drafts, num_accepted)
        if seq.status is Status.RUNNING:  # what came true may fill a block, and this may have been the last step
            self._scheduler.roster.register_blocks(seq, min(seq.num_computed_tokens, seq.num_tokens))

    def _read(self, seq: Sequence, token_id: int) -> str | None:
        """Apply the stop rule and the think budget to the newest token; returns the finish reason, if it is one."""
        stop, tracker = seq.stop, seq.reasoning
        grammar = seq.grammar
        if token_id in stop.stop_ids and seq.num_output_tokens > stop.min_tokens:
            if tracker is not None and tracker.stop_closes and token_id in stop.own_ids:
                reason = self._close_at_stop(seq, tracker)
                return reason if grammar is None else self._follow(seq, grammar, reason)
            seq.stop_token = True
            if tracker is not None:
                tracker.stop_token()
            return "stop"
        if grammar is not None and not grammar.take(token_id):
            return "error"
        reason = self._think(seq, token_id)
        return reason if grammar is None else self._follow(seq, grammar, reason)

    def _close_at_stop(self, seq: Sequence, tracker: ReasoningTracker) -> str | None:
        """Put the close tag where the model wanted to end, so that an answer follows its thoughts."""
        seq.take_back()
        tracker.land(self._put(seq, tracker.stop_closes), "model")
        return "length" if seq.num_output_tokens >= seq.stop.max_tokens else None

    def _think(self, seq: Sequence, token_id: int) -> str | None:
        stop, tracker = seq.stop, seq.reasoning
        if tracker is None:
            return "length" if seq.num_output_tokens >= stop.max_tokens else None
        landing = tracker.lands(token_id)
        tracker.feed(token_id)
        if seq.num_output_tokens >= stop.max_tokens:
            return "length"
        if landing is not None:
            return "length" if self._land(seq, landing) else None
        ended_by = "budget" if tracker.budget_spent else "client" if seq.ends_thinking else None
        return "length" if ended_by is not None and self.force_close(seq, ended_by) else None

    def _follow(self, seq: Sequence, grammar: AnswerGrammar, reason: str | None) -> str | None:
        """See what the grammar makes of the newest token: an answer that is whole, or tokens that need no draw."""
        if grammar.whole:
            return "stop"
        if reason is not None or not grammar.governs:
            return reason
        if grammar.turns and seq.num_pending:
            seq.void_draws()  # planned while thinking went on, they know nothing of the grammar
        forced = jump_of(seq, grammar)
        if not forced:
            return None
        for token_id in self._put(seq, forced):
            grammar.take(token_id)
            if seq.reasoning is not None:
                seq.reasoning.feed(token_id)
        if grammar.whole:
            return "stop"
        return "length" if seq.num_output_tokens >= seq.stop.max_tokens else None

    def _fail(self, seq: Sequence) -> TokenChunk:
        # The bad values may sit in the KV: nobody shall hit these blocks again.
        roster = self._scheduler.roster
        roster.pool.forget(seq.block_table)
        if roster.states is not None:
            roster.states.forget(seq)
        seq.stuck = not seq.num_drafts and leaves_nothing(seq, self._vocab_size)
        return self.finish(seq, "error")
