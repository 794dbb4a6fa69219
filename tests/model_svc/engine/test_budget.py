"""Thinking never costs more than its budget, and the answer behind it is whole, whatever the sizes and the moves."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from model_svc.engine.drafter import Drafter
from model_svc.spec.proposer import Guess
from tests.model_svc.engine.driver import EOS, Driver
from tokenizer_svc.effort import EFFORTS, EffortTable
from tokenizer_svc.reasoning import Thinking, plan
from wire.messages import ANSWER, ReasoningPlan

NUM_PROMPT = 4
SAID = b'{"answer": [1, 2, "three"]}'
THOUGHTS = b"ab. <,/!"
TABLE = EffortTable(tokens=dict(zip(EFFORTS, (0, 5, 12, 40, 64, 90), strict=True)), bridge="Now.")


def thinks_too_long(context: Sequence[int], index: int, seed: int) -> int:
    """Think for ever, also half a close tag now and then; once thinking is closed, say SAID."""
    output = bytes(token for token in context[len(context) - index :] if token < 256)
    thought, tag, answer = output.partition(b"</think>")
    if not tag:
        prompt_end = context[len(context) - index - 1]  # not the seed: a guess can be right
        return THOUGHTS[zlib.crc32(thought + bytes([prompt_end])) % len(THOUGHTS)]
    said = len(answer.lstrip(b"\n"))
    return SAID[said] if said < len(SAID) else EOS


class Foresees:
    """Guesses right but for every `errs`-th token, also beyond the end of a budget."""

    def __init__(self, errs: int) -> None:
        self.errs = errs

    def start(self, prediction: Sequence[int] = ()) -> Foresees:
        del prediction
        return self

    def guess(self, token_ids: Sequence[int], limit: int) -> Guess:
        told = list(token_ids)
        for _ in range(limit):
            right = thinks_too_long(told, len(told) - NUM_PROMPT, 0)
            told.append(right if len(told) % self.errs else 65)
        return Guess(told[len(token_ids) :])


def effort_plan(effort: str, budget: int | None, max_tokens: int, *, starts_open: bool) -> ReasoningPlan:
    wanted = effort != "none" and budget != 0
    thinking = Thinking(native=True, switch=False, wanted=wanted, effort=effort, budget=budget)
    made = plan(thinking, TABLE, starts_open=starts_open, max_tokens=max_tokens, encode=lambda text: [*text.encode()])
    assert made is not None
    return made


@settings(max_examples=80, deadline=None)
@given(
    efforts=st.lists(st.sampled_from(EFFORTS), min_size=1, max_size=4),
    budget=st.none() | st.integers(0, 90),
    chunk=st.integers(1, 40),
    num_blocks=st.integers(70, 200),
    depth=st.integers(0, 2),
    cuts=st.lists(st.integers(0, 60), max_size=3),
    closes=st.none() | st.integers(0, 40),
    drafts=st.integers(0, 9),
    errs=st.integers(2, 9),
)
def test_thinking_stays_within_its_budget_and_the_answer_parses(
    efforts: list[str],
    budget: int | None,
    chunk: int,
    num_blocks: int,
    depth: int,
    cuts: list[int],
    closes: int | None,
    drafts: int,
    errs: int,
) -> None:
    drafter = Drafter(Foresees(errs), max_length=drafts, max_drafts=64, adaptive=False) if drafts else None
    driver = Driver(
        thinks_too_long, drafter=drafter, depth=depth, max_num_batched_tokens=chunk, num_blocks=num_blocks,
        max_num_seqs=3, block_size=4,
    )  # fmt: skip
    plans = [effort_plan(effort, budget, 200, starts_open=True) for effort in efforts]
    for n, wanted in enumerate(plans):
        driver.ask(f"r{n}", [1, 2, 3, n], reasoning=wanted, max_tokens=200)
    for attempt, cut in enumerate(cuts, 1):  # the first request moves on, from wherever it is
        while not driver.reason("r0") and len(driver.ids("r0")) < cut:
            driver.step()
        if not driver.reason("r0"):
            ids = list(driver.ids("r0"))
            driver.ask("r0", [1, 2, 3, 0], reasoning=plans[0], max_tokens=200, attempt=attempt, checkpoint={0: ids})
    if closes is not None:
        while not driver.reason("r0") and len(driver.ids("r0")) < closes:
            driver.step()
        driver.engine.end_reasoning("r0")
    driver.run()
    for n, wanted in enumerate(plans):
        answer = driver.received[f"r{n}", 0].answer
        assert wanted.budget is not None
        assert answer.num_reasoning_tokens <= wanted.budget
        assert answer.finish_reason == "stop"
        assert answer.ended_by in ("budget", "client")
        text = bytes(answer.token_ids[:-1]).partition(b"</think>")[2]
        assert json.loads(text) == json.loads(SAID)


@pytest.mark.parametrize("effort", EFFORTS)
def test_preemption_in_the_middle_of_thinking_spends_nothing_twice(effort: str) -> None:
    alone = effort_plan(effort, None, 200, starts_open=True)
    driver = Driver(thinks_too_long, num_blocks=60, max_num_seqs=4)
    for n in range(4):
        driver.ask(f"r{n}", [1, 2, 3, n], reasoning=alone, max_tokens=200)
    driver.run()
    if effort in ("high", "xhigh"):
        assert driver.engine.load().num_preemptions
    for n in range(4):
        calm = Driver(thinks_too_long, num_blocks=200)
        calm.ask(f"r{n}", [1, 2, 3, n], reasoning=alone, max_tokens=200)
        calm.run()
        assert driver.ids(f"r{n}") == calm.ids(f"r{n}")
        assert driver.received[f"r{n}", 0].answer.num_reasoning_tokens <= (alone.budget or 0)


def test_a_prefix_hit_leaves_the_budget_alone() -> None:
    wanted = effort_plan("low", None, 200, starts_open=True)
    driver = Driver(thinks_too_long)
    for name in ("first", "second"):
        driver.ask(name, list(range(1, 30)), reasoning=wanted, max_tokens=200)
        driver.run()
    assert driver.cached("second")
    assert driver.received["second", 0].answer.num_reasoning_tokens <= (wanted.budget or 0)


def test_the_bridge_is_neither_thinking_nor_answer() -> None:
    driver = Driver(thinks_too_long)
    driver.ask("r", [1, 2], reasoning=effort_plan("minimal", None, 200, starts_open=True), max_tokens=200)
    driver.run()
    answer = driver.received["r", 0].answer
    assert b"\nNow.\n</think>\n\n" in bytes(answer.token_ids[:-1])
    pairs = zip(answer.token_ids[:-1], answer.phases, strict=False)
    assert bytes(token for token, (phase, *_) in pairs if phase == ANSWER) == SAID
    assert answer.num_reasoning_tokens == 5
