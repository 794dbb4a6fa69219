"""Blocks: counted, named, evicted oldest first, and the events tell exactly what is named."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from model_svc.engine.block_pool import BlockPool


def name(number: int) -> bytes:
    return number.to_bytes(16, "little")


def test_the_longest_prefix_matches_and_a_hole_ends_it() -> None:
    pool = BlockPool(4, 2)
    blocks = pool.allocate(3)
    for number in (0, 1, 2):
        pool.register(blocks[number], name(number))
    assert pool.match([name(0), name(1), name(2), name(3)]) == blocks
    assert pool.match([name(0), name(9), name(2)]) == blocks[:1]
    pool.free(blocks)
    pool.take(pool.match([name(0)]))
    pool.allocate(2)  # one plain block is left, then the oldest cached one goes: the end of the chain
    assert pool.match([name(0), name(1), name(2)]) == blocks[:2]


def test_the_least_recently_used_is_evicted_first() -> None:
    pool = BlockPool(2, 2)
    first, second = pool.allocate(2)
    pool.register(first, name(1))
    pool.register(second, name(2))
    pool.free([first])
    pool.free([second])
    pool.take([first])
    pool.free([first])  # used again, so the second is older now
    assert pool.allocate(1) == [second]
    assert pool.match([name(1)]) == [first]
    assert pool.match([name(2)]) == []


def test_a_held_block_is_never_evicted() -> None:
    pool = BlockPool(2, 2)
    blocks = pool.allocate(2)
    pool.register(blocks[0], name(1))
    with pytest.raises(AssertionError):
        pool.allocate(1)
    pool.free([blocks[1]])
    assert pool.allocate(1) == [blocks[1]]


def test_the_second_block_of_a_content_stays_nameless() -> None:
    pool = BlockPool(2, 2)
    first, second = pool.allocate(2)
    pool.register(first, name(1))
    pool.register(second, name(1))
    pool.free([first, second])
    assert pool.match([name(1)]) == [first]
    pool.check_invariants([])


def test_forgotten_blocks_cannot_be_hit_and_are_reported_evicted() -> None:
    pool = BlockPool(2, 2)
    blocks = pool.allocate(2)
    pool.register(blocks[0], name(1))
    pool.events.drain()
    pool.forget(blocks)
    assert pool.match([name(1)]) == []
    (event,) = pool.events.drain()
    assert (event.stored, event.hashes) == (False, name(1))


class PoolMachine(RuleBasedStateMachine):
    """Random tables over a small pool; a listener that only hears events knows the names at any time."""

    @initialize(num_blocks=st.integers(1, 12))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, 2)
        self.tables: list[list[int]] = []
        self.heard: set[bytes] = set()
        self.next_sequence = 0

    @rule(chain=st.integers(0, 3), length=st.integers(1, 6))
    def run_sequence(self, chain: int, length: int) -> None:
        names = [name(chain * 100 + at) for at in range(length)]
        hits = self.pool.match(names)
        num_new = length - len(hits)
        if num_new > self.pool.num_free_without(hits):
            return
        self.pool.take(hits)
        table = hits + self.pool.allocate(num_new)
        for block, its_name in list(zip(table, names, strict=True))[len(hits) :]:
            self.pool.register(block, its_name)
        self.tables.append(table)

    @rule(which=st.integers(0, 9))
    def end_sequence(self, which: int) -> None:
        if self.tables:
            self.pool.free(self.tables.pop(which % len(self.tables)))

    @rule(which=st.integers(0, 9))
    def distrust(self, which: int) -> None:
        if self.tables:
            self.pool.forget(self.tables[which % len(self.tables)])

    @rule()
    def report(self) -> None:
        self.pool.report()

    @rule()
    def listen(self) -> None:
        for event in self.pool.events.drain():
            assert event.sequence == self.next_sequence
            self.next_sequence += 1
            names = {event.hashes[at : at + 16] for at in range(0, len(event.hashes), 16)}
            if event.reset:
                self.heard = names
            elif event.stored:
                assert not names & self.heard, "stored twice"
                self.heard |= names
            else:
                assert names <= self.heard, "evicted what was never stored"
                self.heard -= names
        stored = {its_name for its_name in self.pool._names if its_name is not None}
        assert self.heard == stored

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check_invariants(self.tables)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
