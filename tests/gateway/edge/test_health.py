"""Health, metrics, admission and drain."""

from __future__ import annotations

import os
import signal
from typing import Any

import anyio
import httpx
import pytest
import redis

from gateway.edge.admission import Admission
from gateway.edge.settings import EdgeSettings
from tests.gateway.edge.asks import ASK, CHAT, half_told, lines_until, opened, streamed, whole
from tests.ring import MakeRing, Ring
from tests.script import say
from wire.errors import OverloadedError, UnavailableError
from wire.settings import SettingsError

pytestmark = pytest.mark.anyio


async def test_readiness_names_the_model_without_a_replica(ring: Ring) -> None:
    async def until_missing(*names: str) -> int:
        with anyio.fail_after(60):  # a busy machine's bus may not answer within a second
            while (response := await ring.http.get("/health/ready")).json()["missing"] != list(names):
                await anyio.sleep(0.005)
        assert response.json()["status"] == ("not ready" if names else "ready")
        return response.status_code

    assert await until_missing() == 200
    ring.replica.state = "draining"
    await ring.replica.beat_once()
    assert await until_missing("no ready replica of tiny") == 503
    assert (await ring.http.get("/health")).status_code == 503, "where probes of other servers look"
    assert (await ring.http.get("/health/live")).status_code == 200


async def test_readiness_is_red_while_the_bus_does_not_answer(ring: Ring, bus_url: str) -> None:
    with redis.Redis.from_url(bus_url) as client:
        server = int(client.info("server")["process_id"])
    os.kill(server, signal.SIGSTOP)
    try:
        response = await ring.http.get("/health/ready")
        assert (await ring.http.get("/health/live")).status_code == 200
    finally:
        os.kill(server, signal.SIGCONT)
    assert response.status_code == 503
    assert "the bus does not answer" in response.json()["missing"]


async def test_metrics_hold_genai_histograms_with_the_given_buckets_and_our_own(ring: Ring) -> None:
    await whole(ring)
    await streamed(ring)
    await ring.until_idle()
    text = (await ring.http.get("/metrics")).text
    for bound in ("0.01", "0.02", "40.96", "81.92"):
        assert 'gen_ai_server_request_duration_seconds_bucket{error_type="",' in text
        assert f'le="{bound}"' in text
    assert await ring.metric("gen_ai_server_time_to_first_token_seconds_count") == 2
    assert await ring.metric("headrace_inflight_requests") == 0
    assert 'headrace_requests_total{end="stop",model="tiny"} 2.0' in text
    assert 'headrace_phase_seconds_count{model="tiny",phase="prefill"} 2.0' in text
    assert 'headrace_replicas_ready{model="tiny"} 1.0' in text
    assert await ring.metric("headrace_replica_free_blocks") == 10_000
    with anyio.fail_after(60):  # what the edge knows is the replica's last beat, which may have been before the end
        while await ring.metric("headrace_replica_running") != 0:
            await anyio.sleep(0.005)


async def test_a_request_beyond_the_slots_is_refused_with_a_time_to_come_back(make_ring: MakeRing) -> None:
    async with make_ring(max_inflight=1) as ring:
        ring.replica.play(*say("one "), finish=None)
        async with opened(ring) as response:
            await lines_until(response, "one ")
            refused = await ring.http.post(CHAT, json=ASK)
            assert refused.status_code == 429
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert int(refused.headers["retry-after"]) >= 1
            assert await ring.metric("headrace_admission_refused_total") == 1
        await ring.replica.cancelled()
        await ring.until_idle()
        ring.replica.play(*say("one "))
        assert (await streamed(ring)).finish_reason() == "stop"


def test_a_slot_is_given_back_however_the_request_ends() -> None:
    admission = Admission(1)
    for _ in range(3):
        with pytest.raises(RuntimeError), admission.slot():
            with pytest.raises(OverloadedError), admission.slot():
                pass
            raise RuntimeError
    assert admission.inflight == 0
    admission.draining = True
    with pytest.raises(UnavailableError), admission.slot():
        pass


async def test_stopping_lets_open_streams_finish_and_refuses_new_ones(make_ring: MakeRing) -> None:
    async with make_ring(drain_s=60.0) as ring:
        async with half_told(ring) as (lines, go):
            ring.edge_scope.cancel()
            ready = await ring.http.get("/health/ready")
            assert ready.status_code == 503 and "draining" in ready.json()["missing"]
            refused = await ring.http.post(CHAT, json=ASK)
            assert refused.status_code == 503 and "retry-after" in refused.headers
            assert not ring.edge_stopped.is_set()
            go.set()
            rest = "\n".join([line async for line in lines])
            assert "two " in rest and "[DONE]" in rest
        with anyio.fail_after(60):
            await ring.edge_stopped.wait()
        with pytest.raises(httpx.ConnectError):
            await ring.http.get("/health/live")


async def test_stopping_cuts_what_is_still_open_after_the_drain_and_cancels_it(make_ring: MakeRing) -> None:
    async with make_ring(drain_s=0.1) as ring:
        ring.replica.play(*say("one "), finish=None)
        async with opened(ring) as response:
            await lines_until(response, "one ")
            await ring.stop_edge()
            await ring.replica.cancelled()


@pytest.mark.parametrize(
    ("field", "value"), [("port", 99999), ("max_inflight", 0), ("send_timeout_s", -1.0), ("keep_alive_s", float("nan"))]
)
def test_settings_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=field):
        EdgeSettings(**{field: value})
