"""Blocks from elsewhere join the prefix cache whole, take nobody's room, and can be told from none of the own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from model_svc.engine.adoption import adopt
from model_svc.engine.plan import RunnerInfo
from model_svc.engine.policy import policy_named
from model_svc.engine.roster import Roster

NAMES = [bytes([number]) * 16 for number in range(10)]


class Filled:
    """Notes what was filled with what."""

    def __init__(self) -> None:
        self.content: dict[int, int] = {}

    def __call__(self, blocks: Sequence[int], places: Sequence[int]) -> None:
        self.content |= dict(zip(blocks, places, strict=True))


@pytest.fixture
def roster() -> Roster:
    info = RunnerInfo(
        num_blocks=6, block_size=4, max_num_seqs=2, max_num_batched_tokens=8, max_model_len=64, vocab_size=8
    )
    return Roster(info, policy_named("fcfs"), lambda: 0.0)


def test_adopted_blocks_are_hit_in_the_order_of_their_names_and_are_told(roster: Roster) -> None:
    filled = Filled()
    assert adopt(roster, NAMES[:3], filled) == 3
    assert [filled.content[block] for block in roster.pool.match(NAMES[:4])] == [0, 1, 2]
    assert b"".join(event.hashes for event in roster.pool.events.drain()) == b"".join(NAMES[:3])
    roster.check_invariants()


def test_what_is_cached_already_is_not_filled_again(roster: Roster) -> None:
    adopt(roster, NAMES[:2], Filled())
    filled = Filled()
    assert adopt(roster, NAMES[1:4], filled) == 3
    assert sorted(filled.content.values()) == [1, 2]
    assert len(roster.pool.match(NAMES[:4])) == 4
    roster.check_invariants()


def test_blocks_that_find_no_room_are_left_out_whole(roster: Roster) -> None:
    held = roster.pool.allocate(4)
    assert adopt(roster, NAMES[:3], Filled()) == 0
    assert roster.pool.num_free == 2
    assert adopt(roster, NAMES[:2], Filled()) == 2
    roster.pool.free(held)
    roster.check_invariants()


def test_older_blocks_make_way_but_never_those_of_the_same_chain(roster: Roster) -> None:
    adopt(roster, NAMES[6:10], Filled())
    adopt(roster, NAMES[:2], Filled())
    assert adopt(roster, NAMES[:5], Filled()) == 5
    assert len(roster.pool.match(NAMES[:5])) == 5
    roster.check_invariants()
