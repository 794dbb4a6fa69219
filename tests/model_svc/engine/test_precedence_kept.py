"""Whatever comes, at whatever priority: requests end with their own tokens, and none waits behind a lower one."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import event, given, settings

from model_svc.engine.admission import max_total_tokens
from model_svc.engine.drafter import Drafter
from model_svc.engine.policy import POLICIES
from model_svc.engine.request import EngineRequest
from model_svc.engine.roster import BLOCKS
from tests.model_svc.engine.driver import EOS, Driver, one_byte
from tests.model_svc.engine.guessers import Oracle
from tests.model_svc.engine.oracle import answer
from tests.model_svc.scripted_runner import hashed_reply
from wire.messages import ReasoningPlan

BLOCK = 4
REPLY = hashed_reply(256)
RANKED = [name for name, policy in POLICIES.items() if policy.ranked]


class Watched(Driver):
    """Looks, after each plan, whether somebody waits behind a lower priority who need not."""

    def watch(self) -> None:
        scheduler = self.engine.scheduler
        plan = scheduler.schedule

        def schedule() -> Any:
            roster = scheduler.roster
            before = roster.preemptions[BLOCKS]
            answering = {id(seq) for seq in roster.decoding}
            scheduled = plan()
            if roster.preemptions[BLOCKS] == before and scheduled is not None:
                shares = [*zip(scheduled.sequences, scheduled.plan.sequences, strict=True)]
                said = sum(share.num_tokens for seq, share in shares if id(seq) in answering)
                if said < self.runner.info.max_num_batched_tokens:  # forced tokens may fill a step
                    self._look({id(seq) for seq, _ in shares} - answering)
            return scheduled

        scheduler.schedule = schedule  # type: ignore[method-assign]

    def _look(self, prompts: set[int]) -> None:
        roster, info = self.engine.scheduler.roster, self.runner.info
        running = roster.prefilling + roster.decoding
        if not roster.waiting or not running:
            return
        seq = roster.waiting[0]
        kept = [one for one in running if one.rank <= seq.rank]
        if len(kept) == len(running) or seq.num_inflight or seq.waits:
            return
        if any(id(one) in prompts for one in kept):
            return  # the step's tokens went to prompts before it
        hits, num_new = roster.wants(seq)
        held = {block for one in kept for block in one.block_table} | set(hits)
        fits = num_new + len(kept) <= info.num_blocks - len(held)
        assert not (fits and len(kept) < min(info.max_num_seqs, info.max_num_batched_tokens)), (
            "waits behind a lower priority"
        )


REQUEST = st.fixed_dictionaries({
    "at": st.integers(0, 40), "priority": st.integers(-2, 2), "stem": st.integers(0, 2), "length": st.integers(1, 40),
    "max_tokens": st.integers(1, 24), "n": st.sampled_from([1, 1, 1, 2]), "thinks": st.booleans(),
})  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(REQUEST, min_size=2, max_size=9),
    sizes=st.fixed_dictionaries({
        "num_blocks": st.integers(12, 40), "max_num_seqs": st.integers(1, 4), "depth": st.integers(0, 2),
        "max_num_batched_tokens": st.sampled_from([2, 5, 16, 64]),
    }),
    patience_s=st.sampled_from([3.0, 25.0, 1e9]),
    policy=st.sampled_from(RANKED),
    drafts=st.sampled_from([0, 0, 3]),
)  # fmt: skip
def test_whatever_comes_every_request_ends_with_its_own_tokens_and_rank_is_kept(
    requests: list[dict[str, Any]], sizes: dict[str, Any], patience_s: float, policy: str, drafts: int
) -> None:
    known: list[list[int]] = []
    drafter = Drafter(Oracle(lambda: known, 256, errs=3), max_length=3, max_drafts=64, adaptive=False)
    driver = Watched(REPLY, policy=policy, patience_s=patience_s, drafter=drafter if drafts else None,
                     block_size=BLOCK, max_model_len=68, **sizes)  # fmt: skip
    driver.watch()
    limit = max_total_tokens(driver.runner.info)  # of the smallest pools one prompt and its answer may take all
    asked: dict[str, EngineRequest] = {}
    todo = sorted(requests, key=lambda one: int(one["at"]))
    plan = ReasoningPlan(budget=4, starts_open=True, open_tag=b"<t>", close_tag=b"</t>", close_ids=tuple(b"</t>"))
    while todo or driver.engine.has_work:
        while todo and todo[0]["at"] <= driver.now:
            one = todo.pop(0)
            prompt = [(position * 7 + one["stem"]) % 250 for position in range(one["length"])]
            name = f"r{len(asked)}"
            asked[name] = driver.ask(name, prompt, max_tokens=one["max_tokens"], priority=one["priority"], n=one["n"],
                                     reasoning=plan if one["thinks"] else None)  # fmt: skip
            known += [[*prompt, *expected(asked[name], choice, limit).token_ids] for choice in range(one["n"])]
        driver.step()
        driver.engine.events()
        assert driver.now < 5000, "no end"
    event(f"reasons: {sorted(driver.preemptions())}")
    for name, request in asked.items():
        for choice in range(request.sampling.n):
            assert driver.received[name, choice].answer == expected(request, choice, limit)
    assert driver.engine.load().num_free_blocks == sizes["num_blocks"]


def expected(request: EngineRequest, choice: int, limit: int) -> Any:
    return answer(request, choice, REPLY, eos_ids=(EOS,), token_bytes=one_byte, max_total_tokens=limit)
