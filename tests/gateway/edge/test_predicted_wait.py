"""A request that could not begin before its deadline is refused at once, by what heartbeats tell of the queue."""

from __future__ import annotations

import anyio
import pytest

from gateway.edge.readiness import Replicas
from tests.gateway.edge.asks import ASK, CHAT
from tests.ring import MakeRing
from wire.messages import ReplicaStatus

pytestmark = pytest.mark.anyio


def status(at: float, *, waiting: int, done: int, replica: str = "m-1", state: str = "ready") -> ReplicaStatus:
    return ReplicaStatus(
        replica_id=replica,
        model="m",
        state=state,
        sent_at=at,
        interval_s=60.0,
        num_waiting_tokens=waiting,
        num_prefilled_tokens=done,
    )


def test_the_wait_is_the_queue_over_the_measured_rate() -> None:
    replicas = Replicas(("m",))
    assert replicas.wait_s("m") == 0
    replicas.note(status(10.0, waiting=5000, done=0))
    assert replicas.wait_s("m") == 0, "nothing is known of its rate"
    replicas.note(status(10.5, waiting=4000, done=500))
    assert replicas.wait_s("m") == pytest.approx(4.0)
    replicas.note(status(11.0, waiting=6000, done=1000))
    assert replicas.wait_s("m") == pytest.approx(6.0)


def test_the_rate_is_measured_only_while_there_is_a_queue_and_follows_changes() -> None:
    replicas = Replicas(("m",))
    for at, waiting, done in ((1.0, 100, 0), (2.0, 100, 1000), (3.0, 0, 1000), (9.0, 2000, 1000), (10.0, 2000, 1100)):
        replicas.note(status(at, waiting=waiting, done=done))
    assert replicas.wait_s("m") == pytest.approx(2000 / 730)


def test_the_least_busy_ready_replica_counts() -> None:
    replicas = Replicas(("m",))
    for at in (1.0, 2.0):
        replicas.note(status(at, waiting=9000, done=int(1000 * at)))
        replicas.note(status(at, waiting=50, done=int(1000 * at), replica="m-2"))
    assert replicas.wait_s("m") == pytest.approx(0.05)
    replicas.note(status(3.0, waiting=50, done=3000, replica="m-2", state="draining"))
    assert replicas.wait_s("m") == pytest.approx(9.0)
    replicas.note(status(3.0, waiting=0, done=0, state="gone"))
    assert replicas.wait_s("m") == 0


async def test_what_would_wait_too_long_is_refused_with_a_time_to_come_back(make_ring: MakeRing) -> None:
    async with make_ring(max_wait_s=5.0) as ring:
        ring.replica.num_waiting_tokens = 9_000  # and none of them is ever computed
        with anyio.fail_after(60):
            while (response := await ring.http.post(CHAT, json=ASK)).status_code == 200:
                await anyio.sleep(0.01)
        assert (response.status_code, response.json()["error"]["code"]) == (429, "overloaded")
        assert response.headers["retry-after"] == "60"
        ring.replica.num_waiting_tokens = 0
        with anyio.fail_after(60):
            while (await ring.http.post(CHAT, json=ASK)).status_code != 200:
                await anyio.sleep(0.01)
