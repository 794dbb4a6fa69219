"""Whatever arrives, is cancelled, moved, preempted or chunked, in pools of any size, at any depth: answers are right.

A hypothesis state machine drives the engine over the strict scripted runner and compares every choice with an oracle.
"""

from __future__ import annotations

from itertools import count

import hypothesis.strategies as st
import msgspec
from hypothesis import event, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from model_svc.engine.admission import max_total_tokens
from model_svc.engine.drafter import Drafter
from model_svc.engine.engine import Engine
from model_svc.engine.policy import POLICIES
from model_svc.engine.request import EngineRequest
from model_svc.spec.ngram import NgramProposer
from model_svc.spec.proposer import Proposer
from tests.model_svc.engine.guessers import Oracle, Parrot
from tests.model_svc.engine.oracle import Answer, Received, answer
from tests.model_svc.scripted_runner import ScriptedRunner, hashed_reply
from wire.errors import InvalidRequestError
from wire.messages import ANSWER, Prompt, ReasoningPlan, SamplingParams, pack_ids

PIECES = [b"a", b"b<", b"<t>", b"</t>", b"x</t>y", b"<", b"/t>", b"t", b">", b"c.", b"</t", b"z<t>q", b"!"]
EOS = len(PIECES) - 1
BUDGETS = st.none() | st.integers(0, 6)
CLOSE = st.sampled_from([(3,), (9, 3), (9, 10, 8)])
LANDING = st.sampled_from([(3,), (10, 8), (5, 6), (10, 8, 0)])


def token_bytes(token_id: int) -> bytes:
    return PIECES[token_id]


class EngineMachine(RuleBasedStateMachine):
    """One engine, many clients."""

    @initialize(
        num_blocks=st.integers(3, 24),
        block_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(1, 5),
        token_budget=st.integers(1, 24),
        max_model_len=st.integers(12, 60),
        depth=st.integers(0, 2),
        stages=st.sampled_from([1, 1, 2, 3]),
        policy=st.sampled_from(sorted(POLICIES)),
        proposer=st.sampled_from(["none", "right", "errs", "errs often", "stops", "tags", "ngram"]),
        num_draft_tokens=st.integers(1, 9),
        adaptive=st.booleans(),
        patience_s=st.sampled_from([1.0, 40.0, 1e9]),
        num_snapshots=st.none() | st.integers(0, 6),
        num_tier_blocks=st.sampled_from([0, 1, 5, 40, 400]),
        tier_block_ms=st.sampled_from([0.0, 1e-3, 3.0]),
    )
    def start(self, num_blocks: int, block_size: int, max_num_seqs: int, token_budget: int, max_model_len: int,
              depth: int, stages: int, policy: str, proposer: str, num_draft_tokens: int, adaptive: bool,
              patience_s: float, num_snapshots: int | None, num_tier_blocks: int,
              tier_block_ms: float) -> None:  # fmt: skip
        if num_snapshots is not None:  # with states there are no stages, no guesses and no second tier
            stages, proposer, num_tier_blocks = 1, "none", 0
        self.reply = hashed_reply(len(PIECES))
        self.runner = ScriptedRunner(
            self.reply, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs,
            max_num_batched_tokens=token_budget, max_model_len=max_model_len, vocab_size=len(PIECES), stages=stages,
            depth=depth if stages == 1 else stages - 1, state_bytes=int(num_snapshots is not None),
            num_snapshots=num_snapshots or 0, num_tier_blocks=num_tier_blocks, tier_block_ms=tier_block_ms,
        )  # fmt: skip
        self.known: list[list[int]] = []
        self.drafter = None
        ticks = count()
        if proposer != "none" and stages == 1:
            self.drafter = Drafter(
                self.proposers()[proposer], max_length=num_draft_tokens, max_drafts=self.runner.info.max_drafts,
                adaptive=adaptive,
            )  # fmt: skip
        self.engine = Engine(
            self.runner, token_bytes=token_bytes, eos_token_ids=(EOS,), policy=policy, inter_token_ms=10.0,
            clock=lambda: float(next(ticks)), drafter=self.drafter, patience_s=patience_s,
        )  # fmt: skip
        self.expected: dict[tuple[str, int], Answer] = {}
        self.received: dict[tuple[str, int], Received] = {}
        self.cancelled: set[tuple[str, int]] = set()
        self.requests: list[EngineRequest] = []

    @rule(
        stem=st.integers(0, 2),
        length=st.integers(1, 14) | st.integers(1, 60),
        max_tokens=st.integers(1, 20),
        n=st.integers(1, 3),
        min_tokens=st.integers(0, 3),
        stop_ids=st.sampled_from([(), (0,), (6, 7)]),
        root=st.sampled_from([b"", b"one", b"two"]),
        thinks=st.booleans(),
        budget=BUDGETS,
        starts_open=st.booleans(),
        close_ids=CLOSE,
        landing=st.integers(0, 4),
        landing_ids=LANDING,
        logprobs=st.sampled_from([None, 1]),
    )
    def arrive(self, stem: int, length: int, max_tokens: int, n: int, min_tokens: int, stop_ids: tuple[int, ...],
               root: bytes, thinks: bool, budget: int | None, starts_open: bool, close_ids: tuple[int, ...],
               landing: int, landing_ids: tuple[int, ...], logprobs: int | None) -> None:  # fmt: skip
        plan = ReasoningPlan(
            budget=budget, starts_open=starts_open, open_tag=b"<t>", close_tag=b"</t>", close_ids=close_ids,
            landing=landing if budget is not None else 0, landing_ids=landing_ids,
        )  # fmt: skip
        prompt_ids = [(position * 7 + stem) % EOS for position in range(length)]
        request = EngineRequest(
            request_id=f"r{len(self.requests)}",
            prompt=Prompt(
                token_ids=pack_ids(prompt_ids),
                num_tokens=length,
                block_root=root,
                max_tokens=max_tokens,
                reasoning=plan if thinks else None,
            ),
            sampling=SamplingParams(n=n, min_tokens=min_tokens, stop_token_ids=stop_ids, logprobs=logprobs),
            priority=stem,
        )
        limit = max_total_tokens(self.runner.info)
        if length >= limit:
            try:
                self.engine.add(request)
            except InvalidRequestError:
                return
            raise AssertionError("a request that can never fit was taken")
        self.requests.append(request)
        self.engine.add(request)
        for choice in range(n):
            key = (request.request_id, choice)
            self.expected[key] = answer(
                request, choice, self.reply, eos_ids=(EOS,), token_bytes=token_bytes, max_total_tokens=limit,
                vocab_size=len(PIECES),
            )  # fmt: skip
            self.received[key] = Received(token_bytes)
            self.known.append([*prompt_ids, *self.expected[key].token_ids])

    def proposers(self) -> dict[str, Proposer]:
        return {
            "right": Oracle(lambda: self.known, len(PIECES)),
            "errs": Oracle(lambda: self.known, len(PIECES), errs=4),
            "errs often": Oracle(lambda: self.known, len(PIECES), errs=2),
            "stops": Parrot(EOS, 0, 6),
            "tags": Parrot(3, 10, 8, 4, 5),
            "ngram": NgramProposer(),
        }

    @rule(steps=st.integers(1, 6))
    def run_steps(self, steps: int) -> None:
        for _ in range(steps):
            if self.engine.has_work:
                self.one_step()

    @rule(which=st.integers(0, 9), choice=st.none() | st.integers(0, 2))
    def cancel(self, which: int, choice: int | None) -> None:
        if not self.requests:
            return
        request = self.requests[-1 - which % len(self.requests)]
        for index in range(request.sampling.n):
            key = (request.request_id, index)
            if choice in (None, index) and not self.received[key].answer.finish_reason:
                self.cancelled.add(key)
        self.engine.cancel(request.request_id, choice)

    @rule(which=st.integers(0, 3), cut=st.integers(0, 4))
    def move(self, which: int, cut: int) -> None:
        """Go on with a request from a checkpoint, as after the loss of a replica."""
        if not self.requests:
            return
        at = len(self.requests) - 1 - which % len(self.requests)
        old = self.requests[at]
        keys = [(old.request_id, choice) for choice in range(old.sampling.n)]
        if any(self.received[key].answer.finish_reason or key in self.cancelled for key in keys):
            return
        checkpoint = {key[1]: pack_ids(self.received[key].rewind(cut)) for key in keys}
        self.requests[at] = msgspec.structs.replace(old, attempt=old.attempt + 1, checkpoint=checkpoint)
        self.engine.add(self.requests[at])

    @invariant()
    def agrees_with_itself(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check_invariants()

    def one_step(self) -> None:
        for chunk in self.engine.step():
            key = (chunk.request_id, chunk.choice)
            assert chunk.attempt == self.attempt(chunk.request_id)
            self.received[key].add(chunk)
            if chunk.finish_reason is not None:
                self.compare(key)
        self.engine.check_invariants()

    def compare(self, key: tuple[str, int]) -> None:
        got, want = self.received[key].answer, self.expected[key]
        if got.finish_reason == "cancelled":
            assert key in self.cancelled
            num_tokens = len(got.token_ids)
            assert got.token_ids == want.token_ids[:num_tokens]
            # what a cancel cuts off in the middle of a tag is text
            assert all(phases == want.phases[at] for at, phases in enumerate(got.phases[: max(0, num_tokens - 4)]))
            return
        assert got == want
        assert all(phase == ANSWER for phases in got.phases for phase in phases) or self.thinks(key[0])

    def attempt(self, request_id: str) -> int:
        return next(r for r in self.requests if r.request_id == request_id).attempt

    def thinks(self, request_id: str) -> bool:
        return next(r for r in self.requests if r.request_id == request_id).prompt.reasoning is not None

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(20_000):
            if not self.engine.has_work:
                break
            self.one_step()
            self.engine.events()
        assert not self.engine.has_work, "no end: a deadlock or a livelock"
        assert all(received.answer.finish_reason for received in self.received.values())
        load = self.engine.load()
        event(f"drafts accepted: {load.num_accepted_tokens > 0}")
        event(f"loads: {load.num_loaded_blocks > 0}")
        event(f"preempted: {sorted(reason for reason, times in load.preemptions.items() if times)}")
        event(f"hits: {any(received.num_cached_tokens for received in self.received.values())}")
        assert (load.num_running, load.num_waiting) == (0, 0)
        assert load.num_free_blocks == self.runner.info.num_blocks


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
