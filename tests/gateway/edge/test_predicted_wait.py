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
    replicas.note(status(10.0, waiting=50_000, done=0))
    assert replicas.wait_s("m") == 0, "nothing is known of its rate"
    for second in range(1, 31):
        replicas.note(status(10.0 + second, waiting=60_000, done=10_000 * second))
    assert replicas.wait_s("m") == pytest.approx(6.0, rel=0.02)
    for second in range(31, 331):
        replicas.note(status(10.0 + second, waiting=60_000, done=300_000 + 1_000 * (second - 30)))
    assert 25 < replicas.wait_s("m") < 60, "it follows changes"


def test_the_rate_is_measured_only_while_there_is_a_queue() -> None:
    replicas, idle_too = Replicas(("m",)), Replicas(("m",))
    queue = [(1.0, 9_000, 0), (2.0, 9_000, 20_000), (3.0, 0, 20_000)]
    for at, waiting, done in (*queue, (90.0, 9_000, 20_000)):
        idle_too.note(status(at, waiting=waiting, done=done))
    for at, waiting, done in queue[:2]:
        replicas.note(status(at, waiting=waiting, done=done))
    assert idle_too.wait_s("m") == replicas.wait_s("m") > 0


def test_answers_that_hold_every_seat_for_a_while_make_no_endless_wait() -> None:
    replicas = Replicas(("m",))
    at, done = 0.0, 0
    longest = 0.0
    for _ in range(10):  # half a minute of answers only, then a burst of prompts: 20,000 wait for 30 s each time
        for beat in range(60):
            at, done = at + 0.5, done + 10_000 * (beat >= 58)
            replicas.note(status(at, waiting=20_000, done=done))
            longest = max(longest, replicas.wait_s("m"))
    assert 20 < replicas.wait_s("m") < 60
    assert longest < 600, "a request with the usual deadline is let in from the first half minute on"


@pytest.mark.parametrize("set_by_s", [3600.0, -3600.0])
def test_a_clock_that_is_set_does_not_change_what_is_known_of_a_pace(set_by_s: float) -> None:
    replicas = Replicas(("m",))
    for second in range(30):
        replicas.note(status(1e9 + second, waiting=60_000, done=10_000 * second))
    before = replicas.wait_s("m")
    replicas.note(status(1e9 + 30 + set_by_s, waiting=60_000, done=300_000))
    assert replicas.wait_s("m") == before


def test_the_least_busy_ready_replica_counts() -> None:
    replicas = Replicas(("m",))
    for at in (1.0, 2.0):
        replicas.note(status(at, waiting=9000, done=int(100_000 * at)))
        replicas.note(status(at, waiting=50, done=int(100_000 * at), replica="m-2"))
    assert replicas.wait_s("m") == pytest.approx(0.0005, rel=0.03)
    replicas.note(status(3.0, waiting=50, done=300_000, replica="m-2", state="draining"))
    assert replicas.wait_s("m") == pytest.approx(0.09, rel=0.03)
    replicas.note(status(3.0, waiting=0, done=0, state="gone"))
    assert replicas.wait_s("m") == 0


async def test_what_would_wait_too_long_is_refused_with_a_time_to_come_back(make_ring: MakeRing) -> None:
    async with make_ring(max_wait_s=5.0) as ring:
        ring.replica.num_waiting_tokens = 9_000  # and none of them is ever computed
        with anyio.fail_after(60):
            while (response := await ring.http.post(CHAT, json=ASK)).status_code == 200:
                await anyio.sleep(0.01)
        assert (response.status_code, response.json()["error"]["code"]) == (429, "overloaded")
        assert 1 <= int(response.headers["retry-after"]) <= 60
        ring.replica.num_waiting_tokens = 0
        with anyio.fail_after(60):
            while (await ring.http.post(CHAT, json=ASK)).status_code != 200:
                await anyio.sleep(0.01)
