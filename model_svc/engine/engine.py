"""The engine: requests in, token chunks out, one step at a time. Pure: it knows a runner only by its Protocol."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from model_svc.engine import admission
from model_svc.engine.commit import Committer
from model_svc.engine.drafter import Drafter
from model_svc.engine.energy import EnergyShares
from model_svc.engine.governed import Governed
from model_svc.engine.grammar import Matchers
from model_svc.engine.kv_events import KvEvent
from model_svc.engine.kv_tier import HasKept
from model_svc.engine.load import EngineLoad, load_of
from model_svc.engine.pictures import placed
from model_svc.engine.plan import Runner
from model_svc.engine.policy import policy_named
from model_svc.engine.reasoning import ReasoningTracker
from model_svc.engine.replay import replay
from model_svc.engine.request import EngineRequest
from model_svc.engine.scheduler import ScheduledStep, Scheduler
from model_svc.engine.sequence import Sequence
from model_svc.engine.stopping import StopRule
from model_svc.engine.token_bytes import TokenBytes, sentence_ends
from wire.messages import TokenChunk


class Engine:
    """Owns the sequences and drives the runner.

    With a runner of depth n, up to n submitted steps are uncollected while the next one is planned.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        token_bytes: TokenBytes,
        eos_token_ids: Iterable[int] = (),
        policy: str = "fcfs",
        inter_token_ms: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
        matchers: Matchers | None = None,
        drafter: Drafter | None = None,
        patience_s: float = 30.0,
        metered: bool = False,
    ) -> None:
        """`metered`: somebody brings what a meter of energy says, by `read_energy`."""
        self.scheduler = Scheduler(
            runner.info, policy_named(policy), clock, inter_token_ms=inter_token_ms, drafter=drafter,
            patience_s=patience_s, kept=runner.kept if isinstance(runner, HasKept) else None,
        )  # fmt: skip
        self._runner = runner
        self._info = runner.info
        self.energy = EnergyShares(self.scheduler.costs) if metered else None
        self._committer = Committer(self.scheduler, clock, runner.info.vocab_size, self.energy)
        self._token_bytes = token_bytes
        # Without steps in flight the host knows every token when it plans.
        self._sentence_ends = sentence_ends(token_bytes, runner.info.vocab_size) if runner.info.depth else b""
        self._eos_token_ids = tuple(eos_token_ids)
        self._clock = clock
        self._in_flight: deque[tuple[ScheduledStep, Any]] = deque()
        self._choices: dict[str, list[Sequence]] = {}
        self._ready: list[TokenChunk] = []
        self.adapters = set(runner.info.adapters)  # that requests may ask for
        self._governed = Governed(matchers, token_bytes, runner.info.vocab_size)

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        pool = self.scheduler.roster.pool
        unsaved = pool.tier is not None and pool.tier.has_unsaved
        return bool(self._choices or self._in_flight or self._ready or pool.events) or unsaved

    def add(self, request: EngineRequest) -> None:
        """Take a request; one that is known already is ignored, an older attempt of it is dropped without a word.

        Raises InvalidRequestError or ContextLengthExceededError when it can never work.
        """
        max_tokens = admission.check(request, self._info, self._eos_token_ids, self.adapters)
        pictures = placed(request, self._info)
        self._governed.check(request.sampling)
        known = self._choices.get(request.request_id)
        if known is not None:
            if known[0].attempt >= request.attempt:
                return
            self.cancel(request.request_id)
        # Also of one that ended as it was added: its last chunk may still wait here.
        self._ready = [chunk for chunk in self._ready if chunk.request_id != request.request_id]
        choices = [self._new_sequence(request, choice, max_tokens) for choice in range(request.sampling.n)]
        self._choices[request.request_id] = choices
        leader: Sequence | None = None
        for seq in choices:
            seq.pictures = pictures
            self.scheduler.roster.add(seq)
            if not self._replay(seq):
                seq.leader, leader = leader, leader or seq
        self._drop_finished(request.request_id)

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        """End a request, or one choice of it, before the next step; unknown and finished ones are left alone."""
        for seq in tuple(self._choices.get(request_id, ())):
            if not seq.finished and choice in (None, seq.choice):
                self._ready.append(self._committer.finish(seq, "cancelled"))
        self._drop_finished(request_id)

    def uses_adapter(self, name: str) -> bool:
        """Whether a sequence that has not ended has this adapter."""
        return any(choices[0].request.adapter == name for choices in self._choices.values())

    def end_reasoning(self, request_id: str) -> None:
        """Close the open think blocks of a request at the next step."""
        for seq in tuple(self._choices.get(request_id, ())):
            if not seq.finished and seq.reasoning is not None and seq.reasoning.is_open:
                self._close_thinking(seq, "client")
        self._drop_finished(request_id)

    def step(self) -> list[TokenChunk]:
        """Plan and submit a step, collect the one that is due, and return the chunks that came of it."""
        if self._governed.sequences:
            self._end_stuck()
        chunks, self._ready = self._ready, []
        scheduled = self.scheduler.schedule()
        if scheduled is not None:
            handle = self._runner.submit(scheduled.plan)
            if self._governed.sequences and any(item.mask_follows for item in scheduled.plan.sequences):
                while self._in_flight:
                    chunks += self._collect()
                self._runner.mask(handle, self._governed.masks(scheduled))
            self._in_flight.append((scheduled, handle))
        if self._in_flight and (scheduled is None or len(self._in_flight) > self._info.depth):
            chunks += self._collect()
        elif scheduled is None:
            waits = self._governed.wait()
            assert waits or not self._choices, "requests wait, but nothing can be computed"
        return chunks

    def events(self) -> list[KvEvent]:
        """Return what entered and left the prefix cache since the last call."""
        return self.scheduler.roster.pool.events.drain()

    def report_blocks(self) -> None:
        """Log all cached blocks anew, for a listener that missed some."""
        self.scheduler.roster.pool.report()

    def read_energy(self, joules: float, at: float) -> None:
        """Share what was used since the last reading among those who had work in it."""
        roster = self.scheduler.roster
        if self.energy is not None:
            self.energy.read(joules, at, chain(roster.prefilling, roster.decoding, roster.waiting))

    @property
    def has_unread_work(self) -> bool:
        """Whether anything was computed since the last `read_energy`."""
        return self.energy is not None and self.energy.has_work

    def stop_metering(self) -> None:
        """Tell of no more energy: its meter can no longer be read."""
        self.energy = self._committer.energy = None

    def load(self) -> EngineLoad:
        """Return how busy the engine is now."""
        return load_of(self.scheduler)

    def check_invariants(self) -> None:
        """Assert that nothing leaked between requests, queues, slots and blocks."""
        roster = self.scheduler.roster
        roster.check_invariants()
        queued = {id(seq) for seq in roster.waiting + roster.prefilling + roster.decoding}
        live = {id(seq) for choices in self._choices.values() for seq in choices if not seq.finished}
        assert queued == live, "a sequence is queued but unknown, or known but nowhere queued"

    def _collect(self) -> list[TokenChunk]:
        due, handle = self._in_flight.popleft()
        chunks = self._committer.commit(due, self._runner.collect(handle))
        for chunk in chunks:
            if chunk.finish_reason is not None:
                self._drop_finished(chunk.request_id)
        return chunks

    def _new_sequence(self, request: EngineRequest, choice: int, max_tokens: int) -> Sequence:
        stop = StopRule(request.sampling, request.prompt, self._eos_token_ids, max_tokens)
        seq = Sequence(request, choice, stop, self._clock())
        if request.prompt.reasoning is not None:
            seq.reasoning = ReasoningTracker(request.prompt.reasoning, self._token_bytes)
            seq.sentence_ends = self._sentence_ends if seq.reasoning.lands_softly else b""
        self._governed.add(seq)
        if self.scheduler.drafter is not None:
            self.scheduler.drafter.admit(seq)
        steered = seq.reasoning is not None and seq.reasoning.steers
        seq.free = not steered and seq.grammar is None and seq.bad_words is None and seq.prompt_scores is None
        seq.plain = seq.free and seq.reasoning is None and request.sampling.logprobs is None
        return seq

    def _replay(self, seq: Sequence) -> bool:
        """Restore what a sequence's checkpoint implies; returns whether that already ended it."""
        reason = replay(seq, self._committer.force_close)
        if reason is not None:
            self._ready.append(self._committer.finish(seq, reason))
        return reason is not None

    def _end_stuck(self) -> None:
        """End the answers whose grammars leave no way on."""
        for seq in self._governed.take_failed():
            seq.stuck = True
            self._ready.append(self._committer.finish(seq, "error"))
            self._drop_finished(seq.request_id)

    def _close_thinking(self, seq: Sequence, ended_by: str) -> None:
        if self._committer.force_close(seq, ended_by):
            self._ready.append(self._committer.finish(seq, "length"))
        else:
            self.scheduler.roster.fit(seq)  # its prompt may still be on the way

    def _drop_finished(self, request_id: str) -> None:
        choices = self._choices.get(request_id)
        if choices is not None and all(seq.finished for seq in choices):
            del self._choices[request_id]
