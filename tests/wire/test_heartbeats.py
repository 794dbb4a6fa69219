"""When a replica counts as lost: three missed heartbeats, or its own word."""

from __future__ import annotations

from wire.heartbeats import Heartbeats
from wire.messages import ReplicaStatus


def status(replica_id: str, state: str = "ready") -> ReplicaStatus:
    return ReplicaStatus(replica_id=replica_id, model="m", state=state, sent_at=0.0, interval_s=0.5)


def test_a_replica_is_lost_after_three_missed_heartbeats_and_named_once() -> None:
    beats = Heartbeats()
    assert beats.hear(status("a"), 0.0)
    assert beats.hear(status("b"), 1.0)
    assert beats.lost(1.5) == []
    assert beats.lost(1.6) == ["a"]
    assert beats.lost(1.7) == []
    assert beats.lost(9.0) == ["b"]


def test_a_replica_that_says_gone_does_not_live_on() -> None:
    beats = Heartbeats()
    beats.hear(status("a"), 0.0)
    assert not beats.hear(status("a", "gone"), 0.1)
    assert beats.lost(9.0) == []


def test_a_pause_of_this_process_is_not_held_against_the_replicas() -> None:
    beats = Heartbeats()
    beats.hear(status("a"), 0.0)
    beats.grant_grace(60.0)
    assert beats.lost(61.0) == []
    assert beats.lost(61.6) == ["a"]
