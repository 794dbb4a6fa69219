"""What replicas say of their room counts while they are heard of; the roomiest one decides."""

from __future__ import annotations

from tokenizer_svc.rooms import Rooms
from wire.messages import ReplicaStatus


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def status(replica: str, max_model_len: int, num_blocks: int, *, state: str = "ready") -> ReplicaStatus:
    return ReplicaStatus(
        replica_id=replica, model="m", state=state, sent_at=0.0, interval_s=0.5, block_size=16, num_blocks=num_blocks,
        max_model_len=max_model_len,
    )  # fmt: skip


def test_the_roomiest_ready_replica_counts_by_context_or_by_blocks() -> None:
    rooms = Rooms(Clock())
    assert rooms.most("m") is None
    rooms.hear(status("a", 4096, 64))
    assert rooms.most("m") == 64 * 16 + 1, "its blocks hold less than its context; the last token needs none"
    rooms.hear(status("b", 2048, 1000))
    rooms.hear(status("c", 8192, 1000, state="draining"))
    assert rooms.most("m") == 2048
    assert rooms.most("other") is None
    rooms.hear(status("b", 2048, 1000, state="gone"))
    assert rooms.most("m") == 1025


def test_who_fell_silent_is_forgotten() -> None:
    clock = Clock()
    rooms = Rooms(clock)
    rooms.hear(status("big", 8192, 1000))
    rooms.hear(status("small", 512, 1000))
    clock.now += 1.4
    rooms.hear(status("small", 512, 1000))
    assert rooms.most("m") == 8192
    clock.now += 0.2
    assert rooms.most("m") == 512
    clock.now += 9.0
    assert rooms.most("m") is None
