"""What a request costs on the bus, by the server's own account: one script leads to a replica in one process."""

from __future__ import annotations

from collections import Counter

import pytest

from loadtest.monitor import BESIDE, watched
from tests.ring import Ring

pytestmark = pytest.mark.anyio

REQUESTS = 8


async def test_a_request_is_with_its_replica_after_one_round_trip(ring: Ring, bus_url: str) -> None:
    body = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}
    for _ in range(4):  # connections are open, scripts are known
        assert (await ring.http.post("/v1/chat/completions", json=body)).status_code == 200
    await ring.until_idle()
    async with watched(bus_url) as commands:
        for _ in range(REQUESTS):
            assert (await ring.http.post("/v1/chat/completions", json=body)).status_code == 200
    trips = Counter(name for name in commands if name not in BESIDE)
    hops = {name: count for name, count in trips.items() if name.startswith(("ADMIT", "HAND_OFF"))}
    # There is no conversation to recall; tokenizer, prefix desk and balancer do their part before the job is admitted.
    assert hops == {"ADMIT job": REQUESTS}
    reads, looks = (
        sum(trips[f"{command} {desk}"] for desk in ("history", "tokenizer", "prefix", "balancer"))
        for command in ("XREADGROUP", "CLAIM")
    )
    assert reads < looks + REQUESTS  # they look round now and then, and claim first; a hop needs none of it
    assert trips["HMGET job"] <= REQUESTS  # the replica's: what the edge bills of the prompt comes with the tokens
    assert trips["XREAD edge"] <= trips["SEND edge"] + trips["XREVRANGE edge"]  # which follows a read in vain
