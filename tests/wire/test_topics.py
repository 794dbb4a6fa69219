"""Names of keys: those of one partition share a cluster slot, those beside the ring have their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from wire import topics

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)


def ring(partition: int, name: str) -> list[str]:
    """All keys of a partition."""
    return [
        topics.job_record(partition, name),
        topics.history(partition),
        topics.tokenizer(partition, name),
        topics.prefix(partition, name),
        topics.balancer(partition, name),
        topics.replica(partition, name),
        topics.dead_letter(partition),
        topics.events(partition, name),
        topics.background(partition),
    ]


@given(st.integers(0, 10_000), names)
def test_all_keys_of_a_partition_lie_in_one_slot_whatever_their_names(partition: int, name: str) -> None:
    assert len({key_slot(key.encode()) for key in ring(partition, name)}) == 1


@given(st.integers(0, 10_000), names)
def test_the_partition_is_read_back_from_every_key_of_the_ring(partition: int, name: str) -> None:
    assert {topics.partition_of(key) for key in ring(partition, name)} == {partition}
    assert [key for key in ring(partition, name) if topics.is_replica(key)] == [topics.replica(partition, name)]


@pytest.mark.parametrize(
    "key",
    [topics.control("x:{p1}"), topics.edge("{p1}"), topics.status("m"), topics.kv_events("m"), topics.secret("s"), ""],
)
def test_keys_beside_the_ring_belong_to_no_partition(key: str) -> None:
    assert topics.partition_of(key) is None
    assert not topics.is_replica(key)


def test_partitions_spread_over_the_slots() -> None:
    assert len({key_slot(topics.history(partition).encode()) for partition in range(64)}) == 64
