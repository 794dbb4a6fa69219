"""Sequence numbers: the index may know too little for a moment, never something untrue."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cache_svc.prefix.index import PrefixIndex
from cache_svc.prefix.ledger import EventLedger, Verdict
from wire.messages import BlocksEvicted, BlocksStored

NAMES = [bytes([number]) * 16 for number in range(8)]


def stored(sequence: int, *names: bytes, reset: bool = False) -> BlocksStored:
    return BlocksStored(replica_id="r", sequence=sequence, hashes=b"".join(names), reset=reset)


def evicted(sequence: int, *names: bytes) -> BlocksEvicted:
    return BlocksEvicted(replica_id="r", sequence=sequence, hashes=b"".join(names))


def take(ledger: EventLedger, event: BlocksStored | BlocksEvicted, now: float = 0.0) -> Verdict:
    verdict = ledger.judge(event, now)
    if verdict is Verdict.APPLY:
        list(ledger.apply(event))
    return verdict


def test_an_unknown_replica_is_asked_and_believed_only_after_its_full_report() -> None:
    index = PrefixIndex(100)
    ledger = EventLedger(index)
    assert take(ledger, stored(5, NAMES[0])) is Verdict.ASK
    assert index.match(NAMES) == {}
    assert take(ledger, stored(6, NAMES[0], NAMES[1], reset=True)) is Verdict.APPLY
    assert take(ledger, stored(7, NAMES[2])) is Verdict.APPLY
    assert index.match(NAMES) == {"r": 3}


def test_a_gap_forgets_the_replica_and_asks_once_a_second_until_the_report_comes() -> None:
    index = PrefixIndex(100)
    ledger = EventLedger(index, ask_again_s=1.0)
    take(ledger, stored(1, NAMES[0], reset=True))
    assert take(ledger, stored(3, NAMES[2]), now=10.0) is Verdict.ASK
    assert index.match(NAMES) == {}
    assert take(ledger, stored(4, NAMES[3]), now=10.5) is Verdict.IGNORE
    assert not ledger.hear("r", now=10.9)
    assert ledger.hear("r", now=11.0)
    assert take(ledger, stored(9, NAMES[0], reset=True), now=11.1) is Verdict.APPLY
    assert not ledger.hear("r", now=20.0)
    assert ledger.num_gaps == 1
    assert index.match(NAMES) == {"r": 1}


def test_repeated_and_outdated_events_change_nothing() -> None:
    index = PrefixIndex(100)
    ledger = EventLedger(index)
    take(ledger, stored(4, NAMES[0], NAMES[1], reset=True))
    assert take(ledger, evicted(3, NAMES[0])) is Verdict.IGNORE
    assert take(ledger, evicted(4, NAMES[0])) is Verdict.IGNORE
    assert index.match(NAMES) == {"r": 2}
    assert take(ledger, evicted(5, NAMES[0])) is Verdict.APPLY
    assert index.match(NAMES) == {}


def test_a_replica_forgotten_between_two_slices_of_its_report_stays_forgotten() -> None:
    index = PrefixIndex(100_000)
    ledger = EventLedger(index)
    names = [number.to_bytes(16, "big") for number in range(5000)]
    report = stored(1, *names, reset=True)
    assert ledger.judge(report, 0.0) is Verdict.APPLY
    slices = ledger.apply(report)
    next(slices)
    assert 0 < index.num_blocks("r") < 5000
    ledger.forget("r")
    assert list(slices) == []
    assert index.match(names) == {}


events = st.lists(
    st.tuples(st.sampled_from(["stored", "evicted", "report"]), st.lists(st.sampled_from(NAMES), max_size=4)),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(events=events, lost=st.sets(st.integers(0, 29)), doubled=st.sets(st.integers(0, 29)))
def test_whatever_is_lost_or_doubled_the_index_never_claims_a_block_the_replica_lacks(
    events: list[tuple[str, list[bytes]]], lost: set[int], doubled: set[int]
) -> None:
    index = PrefixIndex(100)
    ledger = EventLedger(index)
    cache: set[bytes] = set()
    for number, (kind, names) in enumerate(events):
        event: BlocksStored | BlocksEvicted
        if kind == "report":
            event = stored(number, *cache, reset=True)
        elif kind == "stored":
            cache.update(names)
            event = stored(number, *names)
        else:
            cache.difference_update(names)
            event = evicted(number, *names)
        if number in lost:
            continue
        for _ in range(2 if number in doubled else 1):
            take(ledger, event, now=float(number))
        index.check_invariants()
        assert {name for name in NAMES if index.match([name])} <= cache
        if kind == "report":
            assert {name for name in NAMES if index.match([name])} == cache
