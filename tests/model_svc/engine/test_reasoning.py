"""Think tags by bytes, budgets by tokens, whatever the cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

import msgspec
import pytest

from model_svc.engine.phase_runs import phase_marks
from model_svc.engine.reasoning import ReasoningTracker
from model_svc.engine.replay import replay_thinking
from tests.model_svc.engine.driver import EOS, Driver, one_byte
from tests.model_svc.scripted_runner import Reply, scripted_reply
from wire.messages import ANSWER, MARKUP, REASONING, PhaseMark, ReasoningPlan

CLOSE = tuple(b"</think>")


def split(text: bytes, plan: ReasoningPlan, cuts: tuple[int, ...]) -> tuple[bytes, bytes, ReasoningTracker]:
    """Feed a text cut into tokens; returns (reasoning, answer) as an edge puts them together from chunks."""
    edges = (0, *cuts, len(text))
    pieces = [text[a:b] for a, b in pairwise(edges)]
    tracker = ReasoningTracker(plan, pieces.__getitem__)
    shown = {REASONING: b"", ANSWER: b"", MARKUP: b""}
    at = 0
    for token in range(len(pieces)):
        tracker.feed(token)
        if token == len(pieces) - 1:
            tracker.end()
        decided = tracker.take()
        phase, marks = phase_marks(decided)
        for index in range(len(decided)):
            for offset, byte in enumerate(pieces[at + index]):
                phase = next((m.phase for m in marks if (m.index, m.offset) == (index, offset)), phase)
                shown[phase] += bytes([byte])
        at += len(decided)
    assert at == len(pieces), "a token was never decided"
    return shown[REASONING], shown[ANSWER], tracker


@pytest.mark.parametrize("num_cuts", [0, 1, 2])
def test_the_same_split_for_every_cut_into_tokens(num_cuts: int) -> None:
    text = b"<think>ab</think>cd"
    for cuts in combinations(range(1, len(text)), num_cuts):
        assert split(text, ReasoningPlan(), cuts)[:2] == (b"ab", b"cd"), cuts


def test_the_same_split_when_the_prompt_opened_the_block() -> None:
    text = b"ab</think>cd"
    for cuts in combinations(range(1, len(text)), 2):
        assert split(text, ReasoningPlan(starts_open=True), cuts)[:2] == (b"ab", b"cd"), cuts


def test_two_think_blocks_are_both_reasoning() -> None:
    text = b"<think>a</think>b<think>c</think>d"
    for cut in range(1, len(text)):
        assert split(text, ReasoningPlan(), (cut,))[:2] == (b"ac", b"bd")


def test_what_only_looks_like_a_tag_stays_text() -> None:
    text = b"a <thin line < b <thinker>"
    for cuts in combinations(range(1, len(text)), 2):
        assert split(text, ReasoningPlan(), cuts)[:2] == (b"", text)


def test_empty_thinking_leaves_no_stray_tag() -> None:
    reasoning, answer, tracker = split(b"<think></think>hi", ReasoningPlan(), (3, 9))
    assert (reasoning, answer, tracker.num_tokens) == (b"", b"hi", 0)


def test_text_that_cannot_become_a_tag_is_decided_at_once() -> None:
    tracker = ReasoningTracker(ReasoningPlan(), one_byte)
    tracker.feed(ord("a"))
    assert tracker.num_decided == 1
    tracker.feed(ord("<"))
    assert tracker.num_decided == 1
    tracker.feed(ord("b"))
    assert tracker.num_decided == 3


def test_marks_stand_inside_a_token_that_holds_a_tag_and_what_follows() -> None:
    pieces = [b"x</think>y"]
    tracker = ReasoningTracker(ReasoningPlan(starts_open=True), pieces.__getitem__)
    tracker.feed(0)
    assert phase_marks(tracker.take()) == (REASONING, (PhaseMark(0, 1, MARKUP), PhaseMark(0, 9, ANSWER)))
    assert tracker.num_tokens == 1  # it holds thinking, so it counts


@pytest.mark.parametrize("depth", [0, 1])
class TestBudget:
    """Over the whole engine, at both depths."""

    def think(self, depth: int, pieces: bytes, *, budget: int | None, starts_open: bool = True, max_tokens: int = 40,
              close: tuple[int, ...] = CLOSE, **sampling: Any) -> Driver:  # fmt: skip
        driver = Driver(scripted_reply(*pieces, EOS), depth=depth)
        plan = ReasoningPlan(budget=budget, starts_open=starts_open, close_ids=close)
        driver.ask("r", [1, 2, 3], reasoning=plan, max_tokens=max_tokens, **sampling)
        driver.run()
        return driver

    def test_zero_closes_before_the_first_draw(self, depth: int) -> None:
        driver = self.think(depth, b"........answer", budget=0)
        answer = driver.received["r", 0].answer
        assert bytes(driver.ids("r")[:-1]) == b"</think>answer"
        assert (answer.num_reasoning_tokens, answer.ended_by, answer.finish_reason) == (0, "budget", "stop")
        assert answer.phases[:8] == [[MARKUP]] * 8

    def test_the_close_comes_right_after_the_last_token_of_the_budget(self, depth: int) -> None:
        driver = self.think(depth, b"thinking........yes", budget=8)
        answer = driver.received["r", 0].answer
        assert bytes(driver.ids("r")[:-1]) == b"thinking</think>yes"
        assert (answer.num_reasoning_tokens, answer.ended_by) == (8, "budget")

    def test_it_binds_when_the_model_opened_the_block_itself(self, depth: int) -> None:
        driver = self.think(depth, b"<think>abc........d", budget=3, starts_open=False)
        assert bytes(driver.ids("r")[:-1]) == b"<think>abc</think>d"

    def test_it_is_shared_by_all_blocks(self, depth: int) -> None:
        driver = self.think(depth, b"ab</think>x<think>ccccccccc........y", budget=11)
        answer = driver.received["r", 0].answer
        assert bytes(driver.ids("r")[:-1]) == b"ab</think>x<think>ccccccccc</think>y"
        assert answer.num_reasoning_tokens == 11

    def test_a_block_opened_with_nothing_left_is_closed_at_once(self, depth: int) -> None:
        driver = self.think(depth, b"........x<think>........y", budget=0)
        assert bytes(driver.ids("r")[:-1]) == b"</think>x<think></think>y"

    def test_a_model_that_closes_in_time_is_left_alone(self, depth: int) -> None:
        driver = self.think(depth, b"ab</think>yes", budget=20)
        answer = driver.received["r", 0].answer
        assert bytes(driver.ids("r")[:-1]) == b"ab</think>yes"
        assert (answer.num_reasoning_tokens, answer.ended_by) == (2, "model")

    def test_a_half_said_close_tag_does_not_stretch_it(self, depth: int) -> None:
        driver = self.think(depth, b"abcde</think>z", budget=8)
        assert driver.received["r", 0].answer.num_reasoning_tokens == 8
        assert bytes(driver.ids("r")[:16]) == b"abcde</t</think>"

    def test_no_budget_means_no_limit(self, depth: int) -> None:
        driver = self.think(depth, b"." * 30, budget=None)
        assert driver.received["r", 0].answer.num_reasoning_tokens == 30

    def test_a_budget_above_max_tokens_ends_as_thinking(self, depth: int) -> None:
        driver = self.think(depth, b"." * 30, budget=99, max_tokens=10)
        answer = driver.received["r", 0].answer
        assert (answer.finish_reason, answer.ended_by, answer.num_reasoning_tokens) == ("length", "stop", 10)
        assert all(phase == REASONING for phases in answer.phases for phase in phases)

    def test_max_tokens_cuts_the_close_itself(self, depth: int) -> None:
        driver = self.think(depth, b"." * 30, budget=4, max_tokens=6)
        assert bytes(driver.ids("r")) == b"....</"
        assert driver.reason("r") == "length"

    def test_an_end_without_close_is_thinking_to_the_end(self, depth: int) -> None:
        driver = self.think(depth, b"abc", budget=20)
        answer = driver.received["r", 0].answer
        assert (answer.finish_reason, answer.ended_by, answer.num_reasoning_tokens) == ("stop", "stop", 3)

    def test_log_probabilities_stay_with_their_tokens(self, depth: int) -> None:
        driver = self.think(depth, b"ab........c", budget=2, logprobs=1)
        chunks = [chunk for chunk in driver.chunks if chunk.token_ids]
        pairs = [pair for chunk in chunks for pair in zip(chunk.token_ids, chunk.logprobs, strict=True)]
        drawn = [(token, lp) for at, (token, lp) in enumerate(pairs) if not 2 <= at < 10]
        assert all(lp.logprob == -token / 100 and lp.top_ids == (token,) for token, lp in drawn)
        assert all(lp.logprob == 0.0 and not lp.top_ids for _, lp in pairs[2:10])


@pytest.mark.parametrize("depth", [0, 1])
def test_the_client_can_end_thinking_at_the_next_step(depth: int) -> None:
    driver = Driver(scripted_reply(*b"." * 5, *b"." * 8, *b"yes", EOS), depth=depth)
    driver.ask("r", [1, 2], reasoning=ReasoningPlan(starts_open=True, close_ids=CLOSE), max_tokens=40)
    while len(driver.ids("r")) < 5:
        driver.step()
    driver.engine.end_reasoning("r")
    driver.engine.end_reasoning("r")  # not open any more: nothing happens
    driver.engine.end_reasoning("unknown")
    driver.run()
    answer = driver.received["r", 0].answer
    assert bytes(driver.ids("r")[:-1]) == b".....</think>yes"
    assert (answer.num_reasoning_tokens, answer.ended_by) == (5, "client")


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("others", [0, 1])
def test_thinking_that_the_client_ends_while_the_prompt_is_computed_has_blocks_for_what_closes_it(
    depth: int, others: int
) -> None:
    driver = Driver(
        scripted_reply(*b"." * 8, *b"yes", EOS),
        depth=depth,
        max_num_batched_tokens=8,
        block_size=4,
        num_blocks=10 - others,
    )
    for number in range(others):  # it leaves no room beside it until it ends
        driver.ask(f"o{number}", [7] * 8, max_tokens=5)
    driver.ask("r", [1] * 24, reasoning=ReasoningPlan(starts_open=True, close_ids=CLOSE), max_tokens=12)
    while not any(seq.request_id == "r" for seq in driver.engine.scheduler.roster.prefilling):
        driver.step()
    driver.engine.end_reasoning("r")
    driver.engine.check_invariants()
    driver.run()
    answer = driver.received["r", 0].answer
    assert bytes(driver.ids("r")[:-1]) == b"</think>yes"
    assert (answer.num_reasoning_tokens, answer.ended_by) == (0, "client")


def test_forced_tokens_are_computed_in_one_step() -> None:
    driver = Driver(scripted_reply(*b"ab........c", EOS))
    driver.ask("r", [1, 2, 3], reasoning=ReasoningPlan(budget=2, starts_open=True, close_ids=CLOSE), max_tokens=40)
    driver.run()
    widths = [item.num_tokens for plan in driver.runner.plans for item in plan.sequences]
    assert widths == [3, 1, 1 + len(CLOSE), 1]


@pytest.mark.parametrize("max_tokens", range(1, 15))
def test_a_replay_reads_what_was_said_alike_however_few_tokens_are_allowed_now(max_tokens: int) -> None:
    trackers = [ReasoningTracker(ReasoningPlan(budget=3, starts_open=True, close_ids=CLOSE), one_byte) for _ in (0, 1)]
    for tracker, limit in zip(trackers, (max_tokens, 100), strict=True):
        assert replay_thinking(tracker, list(b"abc</think>yes"), limit) == ()
    assert trackers[0].take() == trackers[1].take()


@pytest.mark.parametrize("max_tokens", range(1, 13))
def test_a_move_to_a_replica_with_less_room_ends_with_what_was_said(max_tokens: int) -> None:
    """It may have given the answer fewer tokens than the replica before it had generated already."""
    said = b"abc</think>ye"[: max_tokens + 1]
    driver = Driver(scripted_reply(*b"abc........yes", EOS))
    plan = ReasoningPlan(budget=3, starts_open=True, close_ids=CLOSE)
    ids = list(said)
    driver.ask("r", [1, 2, 3], reasoning=plan, max_tokens=max_tokens, attempt=1, checkpoint={0: ids})
    driver.run()
    answer = driver.received["r", 0].answer
    assert answer.token_ids == ids
    assert (answer.finish_reason, answer.num_reasoning_tokens) == ("length", min(3, len(ids)))


@pytest.mark.parametrize("kept", range(16))
@pytest.mark.parametrize("depth", [0, 1])
def test_a_move_at_any_point_changes_nothing(kept: int, depth: int) -> None:
    whole = b"abc</think>yes"
    driver = Driver(scripted_reply(*b"abc........yes", EOS), depth=depth)
    plan = ReasoningPlan(budget=3, starts_open=True, close_ids=CLOSE)
    ids = [*whole, EOS][:kept]
    driver.ask("r", [1, 2, 3], reasoning=plan, max_tokens=40, attempt=1, checkpoint={0: ids})
    driver.run()
    answer = driver.received["r", 0].answer
    assert answer.token_ids == [*whole, EOS]
    assert (answer.finish_reason, answer.num_reasoning_tokens, answer.ended_by) == ("stop", 3, "budget")


LAND = tuple(b"</think>\n")


def landing_plan(**fields: object) -> ReasoningPlan:
    """A budget of 20 whose last 10 tokens are the stretch; the script gives way from the sixth of them on."""
    return ReasoningPlan(budget=20, starts_open=True, close_ids=CLOSE, landing=10, landing_ids=LAND, **fields)  # type: ignore[arg-type]


def thinker(thought: bytes) -> Reply:
    """A reply that goes on with its own text wherever a tag was put into it."""

    def reply(context: Sequence[int], _index: int, _seed: int) -> int:
        said = bytes(token for token in context[3:] if token < 256)
        said = said.replace(b"</think>\n", b"").replace(b"</think>", b"")
        whole: list[int] = [*thought, *b"yes", EOS, EOS, EOS]
        return whole[len(said)]

    return reply


@pytest.mark.parametrize("depth", [0, 1])
class TestSoftLanding:
    """A close tag that comes where a sentence ends."""

    def think(self, depth: int, thought: bytes, plan: ReasoningPlan, **ask: object) -> Driver:
        driver = Driver(thinker(thought), depth=depth)
        driver.ask("r", [1, 2, 3], reasoning=plan, max_tokens=60, **ask)  # type: ignore[arg-type]
        driver.run()
        return driver

    def test_it_comes_at_the_first_sentence_end_of_the_last_stretch(self, depth: int) -> None:
        driver = self.think(depth, b"One. Two. Threee. Four. Five", landing_plan())
        answer = driver.received["r", 0].answer
        assert bytes(driver.ids("r")[:-1]).startswith(b"One. Two. Threee.</think>\n")
        assert (answer.num_reasoning_tokens, answer.ended_by) == (17, "budget")

    def test_without_a_sentence_end_the_limit_is_hard(self, depth: int) -> None:
        driver = self.think(depth, b"no marks in here at all, none whatever", landing_plan())
        answer = driver.received["r", 0].answer
        assert bytes(driver.ids("r")[:-1]).startswith(b"no marks in here at </think>")
        assert (answer.num_reasoning_tokens, answer.ended_by) == (20, "budget")

    def test_a_model_that_closes_by_itself_has_closed_by_itself(self, depth: int) -> None:
        driver = Driver(scripted_reply(*b"Quick.</think>ok", EOS), depth=depth)
        driver.ask("r", [1, 2, 3], reasoning=landing_plan(), max_tokens=60)
        driver.run()
        assert driver.received["r", 0].answer.ended_by == "model"

    def test_max_tokens_cuts_the_tag(self, depth: int) -> None:
        driver = Driver(scripted_reply(*b"One. Two. Threee."), depth=depth)
        driver.ask("r", [1, 2, 3], reasoning=landing_plan(), max_tokens=20)
        driver.run()
        assert bytes(driver.ids("r")) == b"One. Two. Threee.</t"
        assert driver.reason("r") == "length"

    def test_a_move_at_any_point_of_it_changes_nothing(self, depth: int) -> None:
        whole = self.think(depth, b"One. Two. Threee. Four. Five", landing_plan()).received["r", 0].answer
        for kept in range(len(whole.token_ids)):
            ids = whole.token_ids[:kept]
            moved = (
                self.think(depth, b"One. Two. Threee. Four. Five", landing_plan(), attempt=1, checkpoint={0: ids})
                .received["r", 0]
                .answer
            )
            assert moved.token_ids == whole.token_ids, kept
            assert (moved.num_reasoning_tokens, moved.ended_by) == (whole.num_reasoning_tokens, whole.ended_by)

    def test_what_the_runner_is_told_grows_to_the_limit(self, depth: int) -> None:
        driver = self.think(depth, b"a.b.c.d.e.f.g.h.i.j.k.l.m.n", ReasoningPlan(
            budget=20, starts_open=True, close_ids=CLOSE, landing=5, landing_ids=LAND))  # fmt: skip
        told = [item.landing_bias for plan in driver.runner.plans for item in plan.sequences if item.landing_id >= 0]
        assert told == sorted(told)
        assert 0 < told[0] < told[-1] <= 30.0


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("kept", [0, 3, 5, 7, 13, 15])
def test_where_the_client_ended_thinking_another_attempt_ends_it_too(depth: int, kept: int) -> None:
    whole = b".....</think>yes"
    script = scripted_reply(*b"." * 5, *b"." * 8, *b"yes", EOS)
    driver = Driver(script, depth=depth)
    plan = ReasoningPlan(starts_open=True, close_ids=CLOSE)
    driver.ask(
        "r", [1, 2], reasoning=plan, max_tokens=40, attempt=1, checkpoint={0: [*whole, EOS][:kept]}, closed_at={0: (5,)}
    )
    driver.run()
    answer = driver.received["r", 0].answer
    assert bytes(answer.token_ids[:-1]) == whole
    assert (answer.num_reasoning_tokens, answer.ended_by) == (5, "client")


def test_a_chunk_tells_where_the_client_ended_thinking() -> None:
    driver = Driver(scripted_reply(*b"." * 30))
    driver.ask("r", [1, 2], reasoning=ReasoningPlan(starts_open=True, close_ids=CLOSE), max_tokens=20)
    while len(driver.ids("r")) < 5:
        driver.step()
    driver.engine.end_reasoning("r")
    driver.run()
    assert [chunk.closed_at for chunk in driver.chunks if chunk.closed_at >= 0] == [5]


SCAFFOLD = ReasoningPlan(starts_open=True, close_ids=CLOSE, landing_ids=LAND, closes_at_stop=True)


@pytest.mark.parametrize("depth", [0, 1])
class TestAnEndInsideAThinkBlockOfAScaffold:
    """A model that was only told to think ends its turn without closing the block: the answer is still owed."""

    def run(self, depth: int, *pieces: int, **ask: object) -> Driver:
        driver = Driver(scripted_reply(*pieces), depth=depth)
        driver.ask("r", [1, 2, 3], **{"reasoning": SCAFFOLD, "max_tokens": 40, **ask})  # type: ignore[arg-type]
        driver.run()
        return driver

    def test_the_close_tag_takes_the_place_of_the_end(self, depth: int) -> None:
        driver = self.run(depth, *b"hm.", EOS, *b"........yes", EOS)
        answer = driver.received["r", 0].answer
        assert bytes(answer.token_ids[:-1]) == b"hm.</think>\nyes"
        assert (answer.finish_reason, answer.num_reasoning_tokens, answer.ended_by) == ("stop", 3, "model")
        assert answer.token_ids[-1] == EOS

    def test_an_answer_that_ends_has_ended(self, depth: int) -> None:
        driver = self.run(depth, *b"hm</think>yes<think>no", EOS)
        assert driver.reason("r") == "stop"
        assert bytes(driver.ids("r")[:-1]) == b"hm</think>yes<think>no"

    def test_a_stop_id_of_the_client_stops(self, depth: int) -> None:
        driver = self.run(depth, *b"hm", 299, *b"yes", EOS, stop_token_ids=(299,))
        assert driver.ids("r") == [*b"hm", 299]

    def test_half_a_tag_before_the_end_is_thinking(self, depth: int) -> None:
        driver = self.run(depth, *b"a</", EOS, *b"........yes", EOS, logprobs=1)
        answer = driver.received["r", 0].answer
        assert bytes(answer.token_ids[:-1]) == b"a</</think>\nyes"
        assert answer.num_reasoning_tokens == 3

    def test_max_tokens_still_counts(self, depth: int) -> None:
        driver = self.run(depth, *b"hm.", EOS, *b"........yes", EOS, max_tokens=6)
        assert bytes(driver.ids("r")) == b"hm.</t"
        assert driver.reason("r") == "length"

    def test_a_move_knows_the_put_tag_also_where_the_budget_would_be_spent_in_it(self, depth: int) -> None:
        """Its bytes are undecided until the last: a tag that the model itself spelled would have been cut off here."""
        pieces, plan = (*b"hm.", EOS, *b"........yes", EOS), msgspec.structs.replace(SCAFFOLD, budget=5)
        whole = self.run(depth, *pieces, reasoning=plan).received["r", 0].answer
        assert bytes(whole.token_ids[:-1]) == b"hm.</think>\nyes"
        kept = {0: whole.token_ids[:14]}
        moved = self.run(depth, *pieces, reasoning=plan, attempt=1, checkpoint=kept).received["r", 0].answer
        assert moved.token_ids == whole.token_ids
        assert (moved.num_reasoning_tokens, moved.ended_by) == (3, "model")

    def test_a_move_at_any_point_changes_nothing(self, depth: int) -> None:
        pieces = (*b"hm.", EOS, *b"........yes", EOS)
        whole = self.run(depth, *pieces).received["r", 0].answer
        for kept in range(len(whole.token_ids)):
            if 3 < kept < 12:
                continue  # cut within the tag, the rest of it is the model's to say, and this script does not
            moved = self.run(depth, *pieces, attempt=1, checkpoint={0: whole.token_ids[:kept]}).received["r", 0].answer
            assert (moved.token_ids, moved.num_reasoning_tokens, moved.ended_by) == (
                whole.token_ids, whole.num_reasoning_tokens, whole.ended_by,
            )  # fmt: skip
