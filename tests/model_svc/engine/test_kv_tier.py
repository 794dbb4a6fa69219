"""Blocks that left the device come back from the second tier, are told truly, and never in the way of anybody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from model_svc.engine.adoption import adopt
from model_svc.engine.kv_tier import Kept
from model_svc.engine.recall import _COPY_MS
from tests.model_svc.engine.driver import Driver
from tests.model_svc.scripted_runner import hashed_reply, scripted_reply

SIZES: dict[str, Any] = {"num_blocks": 10, "block_size": 4, "num_tier_blocks": 40}
FIRST, OTHER = list(range(32)), list(range(100, 132))  # eight blocks each: the pool has room for one


def driver(policy: str = "fcfs", **sizes: Any) -> Driver:
    return Driver(hashed_reply(250), policy=policy, **(SIZES | sizes))


def answer(made: Driver, name: str, prompt: list[int], **fields: Any) -> list[int]:
    made.ask(name, prompt, seed=7, **fields)
    made.run()
    return made.ids(name)


def told(made: Driver) -> set[bytes]:
    """Follow the events as the prefix desk does."""
    held: set[bytes] = set()
    for event in made.engine.events():
        names = {event.hashes[at : at + 16] for at in range(0, len(event.hashes), 16)}
        held = names if event.reset else held | names if event.stored else held - names
    return held


def test_a_prompt_that_left_the_device_comes_back_by_copies_with_the_same_answer() -> None:
    made = driver()
    first = answer(made, "a", FIRST)
    answer(made, "b", OTHER)
    before = made.engine.load()
    assert answer(made, "c", FIRST) == first
    after = made.engine.load()
    assert after.num_loaded_blocks - before.num_loaded_blocks == 7  # the last token is always computed
    assert after.num_prefilled_tokens - before.num_prefilled_tokens == 4
    assert made.cached("c") == 28


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("length", [3, 4, 5, 8, 9, 31, 32, 33])
def test_prompts_that_end_at_before_or_behind_a_blocks_edge_come_back_with_the_same_answer(
    length: int, depth: int
) -> None:
    made = driver(depth=depth)
    prompt = list(range(length))
    first = answer(made, "a", prompt, max_tokens=3)
    answer(made, "b", OTHER)
    assert answer(made, "c", prompt, max_tokens=3) == first
    assert made.cached("c") == (length - 1) // 4 * 4
    assert made.engine.load().num_loaded_blocks == (length - 1) // 4
    longer = answer(made, "d", [*prompt, 77], max_tokens=3)  # one token more, inside or behind the last block
    assert longer == answer(driver(num_tier_blocks=0), "alone", [*prompt, 77], max_tokens=3)


@pytest.mark.parametrize("depth", [0, 1])
def test_conversations_that_return_at_once_and_need_more_than_there_is_end_one_after_another(depth: int) -> None:
    made = driver(depth=depth)
    prompts = {name: [start + i for i in range(16)] for name, start in (("a", 0), ("b", 40), ("c", 80))}
    wanted = {name: answer(made, name, prompt, max_tokens=8) for name, prompt in prompts.items()}
    answer(made, "other", OTHER)
    for name, prompt in prompts.items():  # four blocks of each are in the tier, six are needed, the pool has ten
        made.ask(f"{name}2", prompt, seed=7, max_tokens=8)
    made.run()
    assert {name: made.ids(f"{name}2") for name in prompts} == wanted
    assert made.engine.load().num_loaded_blocks >= 9


def test_a_conversation_comes_back_with_the_answers_it_has_had() -> None:
    made = driver(num_blocks=12)
    turn = FIRST + answer(made, "a", FIRST, max_tokens=9)
    answer(made, "b", list(range(100, 140)))
    answer(made, "c", [*turn, 5, 6], max_tokens=2)
    assert made.cached("c") == 40  # 41 were known, the last of which was never computed


def test_what_came_back_is_not_saved_again() -> None:
    made = driver()
    for n in range(4):
        answer(made, f"a{n}", FIRST)
        answer(made, f"b{n}", OTHER)
    load = made.engine.load()
    assert load.num_saved_blocks == load.num_kept_blocks <= 2 * 10  # prompts and answers, once each
    assert load.num_loaded_blocks > 30


def test_blocks_are_saved_together_and_at_the_latest_when_there_is_nothing_else_to_do() -> None:
    made = driver()
    made.ask("a", FIRST, max_tokens=4)
    while made.engine.load().num_running or made.engine.load().num_waiting:
        made.step()
        assert not made.engine.load().num_saved_blocks
    made.run()
    assert made.engine.load().num_saved_blocks == 8
    assert [len(plan.saves) for plan in made.runner.plans if plan.saves] == [8]
    assert not made.runner.plans[-1].sequences


def test_the_oldest_goes_when_the_tier_is_full() -> None:
    made = driver(num_tier_blocks=17)
    answer(made, "a", FIRST, max_tokens=1)
    answer(made, "b", OTHER, max_tokens=1)
    answer(made, "a2", FIRST, max_tokens=1)  # newest again
    answer(made, "c", list(range(200, 232)), max_tokens=1)
    answer(made, "a3", FIRST, max_tokens=1)
    assert made.cached("a3") == 28
    answer(made, "b2", OTHER, max_tokens=1)
    assert (made.cached("b2") or 0) < 28


def test_a_block_is_told_as_long_as_it_is_in_either_tier() -> None:
    made = driver(num_tier_blocks=9)
    made.engine.events()
    known: set[bytes] = set()
    for n in range(5):
        made.ask(str(n), [n * 40 + i for i in range(32)], max_tokens=1)
        while made.engine.has_work:
            made.step()
            for event in made.engine.events():
                names = {event.hashes[at : at + 16] for at in range(0, len(event.hashes), 16)}
                known = known | names if event.stored else known - names
        pool = made.engine.scheduler.roster.pool
        assert pool.tier is not None
        held = {name for name in known if pool.find(name) is not None or pool.tier.has(name)}
        assert known == held
        assert known == {*pool._by_name, *pool.tier}
        assert len(known) > (8 if n else 7)  # more than the device alone would have
        made.engine.report_blocks()
        assert told(made) == known


def test_what_is_sooner_computed_than_copied_is_computed() -> None:
    made = driver(tier_block_ms=50.0)  # the scripted runner computes a step in a millisecond
    answer(made, "a", FIRST)
    answer(made, "b", OTHER)
    first = answer(made, "c", FIRST)
    assert made.cached("c") == 0
    assert made.engine.load().num_loaded_blocks == 0
    assert first == made.ids("a")


def test_copies_for_a_long_prompt_are_spread_over_steps_while_others_answer() -> None:
    made = driver(num_blocks=13, tier_block_ms=_COPY_MS / 2)
    made.engine.scheduler.costs.prefill_token_ms = 1e6
    answer(made, "a", FIRST)
    answer(made, "b", OTHER)
    answer(made, "b2", OTHER[::-1])
    made.ask("c", [7], max_tokens=12)
    made.step()
    made.ask("d", FIRST, max_tokens=1)
    made.run()
    assert [len(plan.loads) for plan in made.runner.plans if plan.loads] == [2, 2, 2, 1]
    assert all(plan.sequences for plan in made.runner.plans if plan.loads)  # the answer went on
    assert made.cached("d") == 28


def test_blocks_of_an_answer_that_failed_are_kept_nowhere() -> None:
    made = Driver(scripted_reply(1, 2, 3, None), **SIZES)
    made.ask("a", FIRST)
    made.run()
    assert made.reason("a") == "error"
    assert made.engine.load().num_kept_blocks == 0
    assert told(made) == set()


def test_a_failed_answer_takes_back_what_was_saved_of_it() -> None:
    made = Driver(scripted_reply(*[1] * 7, None), **(SIZES | {"num_blocks": 24, "max_num_batched_tokens": 128}))
    made.ask("a", list(range(80)), max_tokens=30)
    made.run()
    assert made.engine.load().num_saved_blocks >= 16
    assert made.engine.load().num_kept_blocks == 0


def test_blocks_that_are_overwritten_before_they_were_saved_are_lost_and_said_to_be() -> None:
    made = driver(num_blocks=8)
    made.ask("a", FIRST[:25], max_tokens=2)
    while made.engine.load().num_running or made.engine.load().num_waiting:
        made.step()
    roster = made.engine.scheduler.roster
    assert adopt(roster, [bytes([n]) * 16 for n in range(8)], lambda _blocks, _places: None) == 8
    made.engine.check_invariants()
    assert told(made) == {bytes([n]) * 16 for n in range(8)}


def test_what_a_preempted_answer_finds_of_its_own_work_is_not_billed_as_cached() -> None:
    made = driver(policy="priority", max_num_batched_tokens=8)
    made.ask("a", FIRST, max_tokens=2)
    for _ in range(3):
        made.step()
    made.ask("b", OTHER, max_tokens=2, priority=-1)  # takes the blocks of what is half computed
    made.run()
    assert made.preemptions() == {"priority_blocks": 1}
    assert made.engine.load().num_loaded_blocks >= 4
    assert made.cached("a") == 0


def test_log_probabilities_of_a_prompt_are_computed_though_its_blocks_are_kept() -> None:
    made = driver()
    answer(made, "a", FIRST)
    answer(made, "b", OTHER)
    answer(made, "c", FIRST, prompt_logprobs=0)
    assert made.engine.load().num_loaded_blocks == 0


def test_a_prompt_goes_on_where_the_device_has_its_beginning_and_the_tier_the_rest() -> None:
    made = driver(num_blocks=24)
    answer(made, "a", list(range(64)), max_tokens=1)
    answer(made, "b", [100 + n % 60 for n in range(48)], max_tokens=1)  # takes the end of the chain
    before = made.engine.load().num_loaded_blocks
    answer(made, "c", [*range(64), 1], max_tokens=1)
    assert made.cached("c") == 64
    assert 0 < made.engine.load().num_loaded_blocks - before < 16


class Found(Kept):
    """What a former process left: names, of which some are torn."""

    def __init__(self, names: list[bytes], torn: int) -> None:
        self.left, self.torn = names, torn
        self.read: list[int] = []

    def names(self) -> Iterable[tuple[bytes, int]]:
        return [(name, place) for place, name in enumerate(self.left)]

    def is_sound(self, place: int) -> bool:
        self.read.append(place)
        return place != self.torn


def test_what_was_kept_before_the_start_is_told_and_read_once_and_only_up_to_what_is_torn() -> None:
    first = driver()
    answer(first, "a", FIRST, max_tokens=1)
    pool = first.engine.scheduler.roster.pool
    assert pool.tier is not None
    names = list(pool.tier)
    again = driver()
    found = Found(names, torn=5)
    tier = again.engine.scheduler.roster.pool.keep_beside(again.runner.info, found)
    again.engine.scheduler.recall._tier = tier  # type: ignore[union-attr]
    again.runner.tier = first.runner.tier
    assert told(again) == set(names)
    for n in range(2):
        assert answer(again, f"a{n}", FIRST, max_tokens=1) == first.ids("a")
        answer(again, f"b{n}", OTHER, max_tokens=1)
    assert again.cached("a0") == 20
    assert again.cached("a1") == 28  # the torn one was computed and saved anew
    assert found.read == [0, 1, 2, 3, 4, 5, 6][: len(found.read)]
    assert len(set(found.read)) == len(found.read)


def test_what_a_peer_sent_is_hit_behind_what_comes_back_from_the_tier() -> None:
    made = driver(num_blocks=24, num_tier_blocks=60)
    made.ask("a", FIRST, max_tokens=1, seed=7)
    made.run()
    names = list(made.engine.scheduler.roster.pool._by_name)
    for n in range(2):
        answer(made, f"b{n}", [100 + (n + 2) * i % 90 for i in range(80)], max_tokens=1)
    pool = made.engine.scheduler.roster.pool
    assert pool.tier is not None
    assert not pool.match(names)
    for name in names[4:]:  # they are in no tier
        pool.tier.forget(name)

    def fill(blocks: Sequence[int], places: Sequence[int]) -> None:
        for block, place in zip(blocks, places, strict=True):
            made.runner._cells[block * 4 : block * 4 + 4] = first[place]

    first = [next(cells for kept, cells in made.runner.tier.values() if kept == name) for name in names[4:]]
    assert adopt(made.engine.scheduler.roster, names[4:], fill) == 4
    before = made.engine.load()
    assert answer(made, "c", FIRST, max_tokens=1) == made.ids("a")
    assert made.cached("c") == 28
    assert made.engine.load().num_loaded_blocks - before.num_loaded_blocks == 4


def test_a_tier_smaller_than_what_is_saved_at_once_keeps_the_first_blocks() -> None:
    made = driver(num_tier_blocks=2)
    first = answer(made, "a", FIRST, max_tokens=1)
    answer(made, "b", OTHER, max_tokens=1)
    assert answer(made, "c", FIRST, max_tokens=1) == first
    assert made.engine.load().num_kept_blocks == 2
    assert all(len(plan.saves) <= 2 for plan in made.runner.plans)


def test_another_root_hits_nothing_in_either_tier() -> None:
    """Tenant, `cache_salt` and model are in the root of a chain."""
    made = driver()
    answer(made, "a", FIRST, root=b"one salt")
    answer(made, "b", OTHER)
    answer(made, "c", FIRST, root=b"another salt")
    assert made.cached("c") == 0
    answer(made, "d", FIRST, root=b"one salt")
    assert made.cached("d") == 28


def busy(made: Driver, *, rounds: int) -> None:
    """Have a conversation hit on the device again and again, while others fill the tier."""
    for n in range(rounds):
        answer(made, f"a{n}", FIRST, max_tokens=1)
        answer(made, f"o{n}", [40 + n] * 16, max_tokens=1)


def test_what_was_busy_on_the_device_until_it_had_to_go_is_kept_whatever_the_tier_dropped_meanwhile() -> None:
    made = driver(num_blocks=14, num_tier_blocks=20)
    busy(made, rounds=6)
    tier = made.engine.scheduler.roster.pool.tier
    assert tier is not None
    answer(made, "b", [99] * 52, max_tokens=1)  # takes the whole pool
    answer(made, "c", FIRST, max_tokens=1)
    assert made.cached("c") == 28
    assert made.engine.load().num_loaded_blocks >= 7


def test_what_leaves_the_device_last_goes_last_from_the_tier() -> None:
    made = driver(num_blocks=14, num_tier_blocks=26)
    answer(made, "a", FIRST, max_tokens=1)
    answer(made, "o", [41] * 16, max_tokens=1)
    answer(made, "a2", FIRST, max_tokens=1)  # hit on the device: the tier hears nothing
    answer(made, "b", [99] * 52, max_tokens=1)  # now `a` goes, behind `o`
    answer(made, "b2", [98] * 20, max_tokens=1)  # the tier drops `o`, and one more
    answer(made, "c", FIRST, max_tokens=1)
    assert made.cached("c") == 28
    assert made.engine.load().num_loaded_blocks == 7
