"""A prompt goes where it is answered soonest, and what is known elsewhere is fetched if computing takes longer."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.balancer.fleet import Fleet
from gateway.balancer.policy import prefix_and_load
from gateway.balancer.sources import best_offer, can_fetch
from wire.messages import ReplicaStatus


def status(replica_id: str, **changes: Any) -> ReplicaStatus:
    base: dict[str, Any] = {
        "num_blocks": 1024, "num_free_blocks": 1024, "max_model_len": 65536, "max_num_seqs": 8,
        "kv_address": f"tcp:10.0.0.1:{sum(replica_id.encode())}", "kv_layout": "l", "kv_bytes_per_token": 20_000,
        "prefill_token_ms": 1.0,
    }  # fmt: skip
    return ReplicaStatus(replica_id=replica_id, model="m", state="ready", sent_at=0.0, **{**base, **changes})


def fleet(*statuses: ReplicaStatus) -> Fleet:
    made = Fleet(prefix_and_load)
    for one in statuses:
        made.hear(one, 0.0)
    return made


def test_a_replica_with_less_to_do_fetches_what_the_busy_one_knows() -> None:
    made = fleet(status("a", num_waiting_tokens=600), status("b"))
    chosen = made.place(1000, {"a": 960}, 0.0)
    assert chosen is not None and chosen.source is not None
    assert (chosen.replica_id, chosen.cached_tokens) == ("b", 0)
    assert (chosen.source.replica_id, chosen.source.num_tokens) == ("a", 960)
    assert chosen.source.address == made._replicas["a"].status.kv_address


def test_the_holder_wins_while_it_is_idle_and_fetches_from_nobody() -> None:
    chosen = fleet(status("a"), status("b")).place(1000, {"a": 960, "b": 480}, 0.0)
    assert chosen is not None
    assert (chosen.replica_id, chosen.source) == ("a", None)


def test_the_longest_prefix_is_the_source_and_only_what_it_adds_counts() -> None:
    a, b, c = status("a"), status("b"), status("c")
    offer = best_offer(a, [a, b, c], {"a": 160, "b": 480, "c": 960}, 0.5)
    assert offer is not None
    assert (offer.source.replica_id, offer.source.num_tokens) == ("c", 960)
    assert 0 < offer.saved_tokens < 800


@pytest.mark.parametrize(
    "changes",
    [
        {"prefill_token_ms": 0.05},  # computing is sooner than the network
        {"fetch_bytes_per_s": 1e6},
        {"kv_layout": "other"},
        {"kv_layout": ""},
    ],
    ids=["fast", "slow way", "another layout", "no sharing"],
)
def test_where_a_fetch_would_not_pay_or_not_work_nothing_is_fetched(changes: dict[str, Any]) -> None:
    assert best_offer(status("a"), [status("b")], {"b": 960}, 0.5) is not None
    assert best_offer(status("a", **changes), [status("b")], {"b": 960}, 0.5) is None


def test_a_few_blocks_are_not_worth_a_fetch() -> None:
    assert best_offer(status("a"), [status("b")], {"b": 48}, 0.5) is None
    assert best_offer(status("a", prefill_token_ms=0.0), [status("b")], {"b": 64}, 0.5) is not None


def test_a_unix_socket_leads_to_replicas_of_the_same_host_only() -> None:
    here, there = (status(name, kv_address=f"unix:{name}:/run/kv") for name in ("h1", "h2"))
    neighbour = status("n", kv_address="unix:h1:/run/other")
    assert can_fetch(neighbour, here)
    assert not can_fetch(neighbour, there)
    assert not can_fetch(here, here)
    assert can_fetch(here, status("t"))


def test_a_replica_that_is_lost_is_nobodys_source() -> None:
    made = fleet(status("a"), status("b"))
    made.hear(ReplicaStatus(replica_id="a", model="m", state="gone", sent_at=0.0), 0.1)
    chosen = made.place(1000, {"a": 960}, 0.2)
    assert chosen is not None and chosen.source is None
