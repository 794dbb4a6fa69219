"""The index against a naive model: per replica a set of blocks, matched by walking the prompt."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cache_svc.prefix.index import PrefixIndex, split
from wire import block_hash

REPLICAS = ("r0", "r1", "r2", "r3")
NAMES = [bytes([number]) * 16 for number in range(12)]

names = st.lists(st.sampled_from(NAMES), max_size=8)
replicas = st.sampled_from(REPLICAS)


class AgainstNaiveModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(max_blocks=1000)
        self.held: dict[str, set[bytes]] = {}

    @rule(replica=replicas, names=names)
    def add(self, replica: str, names: list[bytes]) -> None:
        self.index.add(replica, names)
        self.held.setdefault(replica, set()).update(names)

    @rule(replica=replicas, names=names)
    def remove(self, replica: str, names: list[bytes]) -> None:
        self.index.remove(replica, names)
        self.held.get(replica, set()).difference_update(names)

    @rule(replica=replicas)
    def drop(self, replica: str) -> None:
        self.index.drop(replica)
        self.held.pop(replica, None)

    @rule(budget=st.integers(1, 20))
    def sweep(self, budget: int) -> None:
        self.index.sweep(budget)

    @rule(prompt=names)
    def match(self, prompt: list[bytes]) -> None:
        expected = {}
        for replica, held in self.held.items():
            length = next((at for at, name in enumerate(prompt) if name not in held), len(prompt))
            if length:
                expected[replica] = length
        assert self.index.match(prompt) == expected

    @invariant()
    def both_directions_agree(self) -> None:
        self.index.check_invariants()
        for replica in REPLICAS:
            assert self.index.num_blocks(replica) == len(self.held.get(replica, ()))


AgainstNaiveModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAgainstNaiveModel = AgainstNaiveModel.TestCase


def test_a_full_index_matches_shorter_never_longer() -> None:
    index = PrefixIndex(max_blocks=3)
    index.add("r0", NAMES[:5])
    index.add("r1", NAMES[:2])
    assert index.match(NAMES) == {"r0": 3, "r1": 2}
    assert len(index) == 3
    assert index.num_refused == 2


def test_dropped_replicas_give_their_memory_back_after_the_sweep() -> None:
    index = PrefixIndex(max_blocks=1000)
    for number in range(100):  # bits are reused: the bit set does not grow with every restart of a replica
        index.add(f"r{number}", NAMES)
        index.drop(f"r{number}")
        while index.sweep(5):
            pass
    assert len(index) == 0
    index.add("last", NAMES)
    assert index._bits == {"last": 1}


def test_blocks_of_another_salt_tenant_model_or_adapter_never_match() -> None:
    ids = list(range(64))
    base: dict[str, Any] = {"model": "m", "block_size": 16, "tenant": "a", "cache_salt": "s", "adapter": ""}
    mine = block_hash.chain(block_hash.root(b"secret", **base), ids, 16)
    index = PrefixIndex(max_blocks=1000)
    index.add("r0", mine)
    assert index.match(mine) == {"r0": 4}
    for field in ("model", "tenant", "cache_salt", "adapter"):
        other = block_hash.chain(block_hash.root(b"secret", **{**base, field: "x"}), ids, 16)
        assert index.match(other) == {}, field
    assert index.match(block_hash.chain(block_hash.root(b"another", **base), ids, 16)) == {}


def test_a_32k_token_prompt_costs_one_look_up_a_block_however_many_replicas_hold_it() -> None:
    looked_up = 0

    class Name(bytes):
        def __hash__(self) -> int:
            nonlocal looked_up
            looked_up += 1
            return super().__hash__()

    prompt = [blake2b(number.to_bytes(4, "big"), digest_size=16).digest() for number in range(2048)]
    index = PrefixIndex(max_blocks=100_000)
    for replica in range(16):
        index.add(f"r{replica}", prompt[: 128 * (replica + 1)])
    found = index.match([Name(name) for name in split(b"".join(prompt))])
    assert found == {f"r{replica}": 128 * (replica + 1) for replica in range(16)}
    assert looked_up == 2048
    assert index.match([Name(name) for name in (b"another", *prompt)]) == {}
    assert looked_up == 2049  # nobody holds the first one, so no more are looked at
