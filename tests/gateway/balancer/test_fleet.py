"""What the balancer knows of replicas: who is ready, what was placed since the last heartbeat, who is lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from gateway.balancer.fleet import Fleet
from gateway.balancer.policy import prefix_and_load
from wire.errors import ContextLengthExceededError
from wire.messages import ReplicaStatus


def status(replica_id: str, state: str = "ready", /, **load: Any) -> ReplicaStatus:
    base: dict[str, Any] = {"num_blocks": 64, "num_free_blocks": 64, "max_model_len": 4096, "max_num_seqs": 8}
    return ReplicaStatus(replica_id=replica_id, model="m", state=state, sent_at=0.0, **{**base, **load})


def fleet(*statuses: ReplicaStatus) -> Fleet:
    made = Fleet(prefix_and_load)
    for one in statuses:
        made.hear(one, 0.0)
    return made


def placed(made: Fleet, num_tokens: int = 100, cached: dict[str, int] | None = None, now: float = 0.0) -> str | None:
    chosen = made.place(num_tokens, cached or {}, now)
    return chosen.replica_id if chosen else None


@pytest.mark.parametrize("state", ["loading", "draining"])
def test_only_ready_replicas_get_work(state: str) -> None:
    assert placed(fleet(status("a", state))) is None
    assert placed(fleet(status("a", state), status("b"))) == "b"


def test_only_replicas_with_the_adapter_that_is_wanted_get_its_requests() -> None:
    made = fleet(status("a"), status("b", adapters=("sql", "legal")), status("c", adapters=("legal",)))
    for _ in range(3):
        chosen = made.place(100, {"a": 90, "c": 90}, 0.0, adapter="sql")
        assert chosen is not None and chosen.replica_id == "b"
    assert made.place(100, {}, 0.0, adapter="none of these") is None
    assert placed(made, cached={"a": 90}) == "a"  # the model alone needs none


def test_a_prompt_of_an_adapter_is_computed_ahead_only_where_it_is_known() -> None:
    parts: dict[str, Any] = {
        "kv_layout": "l",
        "kv_address": "unix:h:p",
        "kv_bytes_per_token": 1,
        "prefill_token_ms": 10.0,
    }
    made = fleet(
        status("p", role="prefill", **parts),
        status("q", role="prefill", adapters=("sql",), **parts),
        status("d", role="decode", adapters=("sql",), **parts),
    )
    for _ in range(3):
        chosen = made.place_prefill(1000, {}, 0.0, adapter="sql")
        assert chosen is not None and chosen.replica_id == "q"
    assert made.place_prefill(1000, {}, 0.0, adapter="none of these") is None


def test_what_was_just_placed_counts_as_load_before_the_next_heartbeat() -> None:
    made = fleet(*(status(f"r{number}") for number in range(4)))
    picked = [placed(made) for _ in range(40)]
    assert Counter(picked) == dict.fromkeys(["r0", "r1", "r2", "r3"], 10)


def test_a_heartbeat_settles_what_it_must_know_of_and_keeps_what_it_may_have_missed() -> None:
    made = fleet(status("a"), status("b"))
    assert placed(made, cached={"a": 50}) == "a"
    made.hear(status("a"), 0.05)  # was under way while the request was: it still counts
    assert placed(made) == "b"
    made.hear(status("a"), 0.5)
    made.hear(status("b"), 0.5)
    assert placed(made, cached={"a": 50}, now=0.5) == "a"


def test_the_prefix_decides_until_the_holder_is_far_behind() -> None:
    made = fleet(status("a", num_waiting_tokens=60), status("b"))
    assert placed(made, 100, {"a": 80}) == "a"
    made.hear(status("a", num_waiting_tokens=90), 1.0)
    assert placed(made, 100, {"a": 80}, now=1.0) == "b"


def test_three_missed_heartbeats_lose_a_replica_once() -> None:
    made = fleet(status("a"))
    assert made.lost(1.5) == []
    assert made.lost(1.51) == ["a"]
    assert made.lost(2.0) == []
    assert not made.knows("a")


def test_a_pause_of_the_balancer_itself_loses_nobody() -> None:
    made = fleet(status("a"))
    made.grant_grace(100.0)
    assert made.lost(101.0) == []


def test_a_replica_that_says_gone_is_gone() -> None:
    made = fleet(status("a"))
    made.hear(status("a", "gone"), 0.1)
    assert placed(made) is None


def test_a_prompt_that_fits_no_replica_is_refused_at_once() -> None:
    made = fleet(status("a"), status("b", num_blocks=80))
    with pytest.raises(ContextLengthExceededError, match="at most 1280") as caught:
        made.place(1281, {}, 0.0)
    assert caught.value.param == "messages"
    assert placed(made, 1280) == "b"


def test_a_prompt_that_fits_no_ready_replica_waits_for_one_that_is_loading() -> None:
    made = fleet(status("a"), status("b", "loading", num_blocks=0, max_model_len=0))
    assert placed(made, 1281) is None


def test_requests_with_one_affinity_gather_and_others_spread() -> None:
    names = [f"r{number}" for number in range(4)]
    made = fleet(*map(status, names))
    gathered: set[str | None] = set()
    spread: set[str | None] = set()
    for turn in range(8):
        for affinity, seen in (("a", gathered), ("", spread)):
            chosen = made.place(100, {}, float(turn), affinity=affinity)
            assert chosen is not None
            seen.add(chosen.replica_id)
            for name in names:  # all are idle again
                made.hear(status(name), turn + 0.5)
    assert len(gathered) == 1 and len(spread) > 1
