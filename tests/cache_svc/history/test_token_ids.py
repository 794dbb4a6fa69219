"""Token ids of a chain: each turn gets its own back, and keeps only what its parent has not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cache_svc.history.token_ids import pack, unpack
from wire.messages import pack_ids, unpack_ids

ids = st.lists(st.integers(0, 2), max_size=12)


@given(chain=st.lists(ids.filter(bool), min_size=1, max_size=6))
def test_every_turn_of_a_chain_gets_its_ids_back(chain: list[list[int]]) -> None:
    stored = []
    parent = b""
    for turn in chain:
        stored.append(pack(pack_ids(turn), parent, "m"))
        parent = pack_ids(turn)
    for number, turn in enumerate(chain):
        assert unpack_ids(unpack(stored[number::-1], "m")) == turn


def test_a_turn_keeps_only_what_its_parent_has_not() -> None:
    kept = pack(pack_ids([1, 2, 3, 4]), pack_ids([1, 2, 3]), "m")
    assert (kept.shared, unpack_ids(kept.tail)) == (3, [4])


def test_ids_are_unknown_if_a_turn_they_build_on_is_or_is_another_models() -> None:
    first = pack(pack_ids([1, 2]), b"", "m")
    second = pack(pack_ids([1, 2, 3]), pack_ids([1, 2]), "m")
    assert unpack([second, None], "m") == b""
    assert unpack([second], "m") == b""
    assert unpack([second, first], "other") == b""
    assert unpack([], "m") == b""
