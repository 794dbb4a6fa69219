"""Limits of keys on a real server: two edges share them, nothing is taken twice, and what is not used comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.edge.tenancy.key_file import ApiKey, hash_of
from gateway.edge.tenancy.limits import Limits, Standing, Why, tokens_wanted
from wire.bus import Bus, BusOptions
from wire.messages import ChatMessage, Pairs, Request, SamplingParams, pack_ids

pytestmark = pytest.mark.anyio


def key(**limits: Any) -> ApiKey:
    return ApiKey(id="a", tenant="t", hash=hash_of("a"), **limits)


@pytest.fixture
async def edges(bus: Bus, bus_url: str, bus_options: BusOptions) -> AsyncIterator[tuple[Limits, Limits]]:
    async with Bus.open(bus_url, bus_options) as other:
        yield Limits(bus.route), Limits(other.route)


async def enter(limits: Limits, key: ApiKey, request: str, wanted: int = 0, lease_s: float = 60) -> Standing:
    return await limits.enter(key, request, wanted, lease_s=lease_s)


async def test_requests_a_minute_are_counted_over_all_edges_and_a_repeated_script_counts_once(
    edges: tuple[Limits, Limits],
) -> None:
    one, other = edges
    limited = key(requests_per_minute=2)
    assert (await enter(one, limited, "r1")).requests == 1
    assert (await enter(one, limited, "r1")).requests == 1
    assert (await enter(other, limited, "r2")).why is Why.ALLOWED
    refused = await enter(one, limited, "r3")
    assert refused.why is Why.REQUESTS and 0 < refused.retry_s <= 30
    assert 0 < refused.requests_reset_s <= 60
    await one.leave(limited, "r1", 0, used=5)
    assert (await enter(one, limited, "r3")).why is Why.REQUESTS, "a request that is over has still been made"


async def test_tokens_that_were_not_used_come_back_once_and_more_than_were_taken_are_owed(
    edges: tuple[Limits, Limits],
) -> None:
    one, other = edges
    limited = key(tokens_per_minute=6)
    assert (await enter(one, limited, "r1", 4)).tokens == 2
    refused = await enter(other, limited, "r2", 4)
    assert refused.why is Why.TOKENS and 10 < refused.retry_s <= 20
    for _ in range(3):
        await one.leave(limited, "r1", 4, used=1)
    assert (await enter(other, limited, "r2", 4)).tokens == 1
    await other.leave(limited, "r2", 4, used=30)
    late = await enter(one, limited, "r3", 1)
    assert late.why is Why.TOKENS and late.tokens == 0 and late.retry_s > 200


async def test_a_request_that_wants_more_than_a_minutes_tokens_waits_for_a_full_bucket(
    edges: tuple[Limits, Limits],
) -> None:
    limited = key(tokens_per_minute=6)
    assert (await enter(edges[0], limited, "r1", 1000)).why is Why.ALLOWED
    assert (await enter(edges[0], limited, "r2", 1)).why is Why.TOKENS
    await edges[0].leave(limited, "r1", 1000, used=6)
    assert (await enter(edges[0], limited, "r2", 1)).why is Why.TOKENS


async def test_so_many_at_a_time_and_the_place_of_a_dead_edge_is_free_again(edges: tuple[Limits, Limits]) -> None:
    one, other = edges
    limited = key(max_concurrent=2)
    assert (await enter(one, limited, "r1")).why is Why.ALLOWED
    assert (await enter(one, limited, "dead", lease_s=0)).why is Why.ALLOWED
    assert (await enter(other, limited, "r2")).why is Why.ALLOWED
    assert (await enter(other, limited, "r3")).why is Why.CONCURRENT
    await one.leave(limited, "r1", 0, used=0)
    assert (await enter(other, limited, "r3")).why is Why.ALLOWED


async def test_keys_do_not_share_their_limits(edges: tuple[Limits, Limits]) -> None:
    mine, other = key(max_concurrent=1), ApiKey(id="b", tenant="t", hash=hash_of("b"), max_concurrent=1)
    assert (await enter(edges[0], mine, "r1")).why is Why.ALLOWED
    assert (await enter(edges[0], other, "r2")).why is Why.ALLOWED
    assert (await enter(edges[0], mine, "r3")).why is Why.CONCURRENT


def test_what_a_request_may_use_is_estimated_from_prompt_and_limit() -> None:
    messages = (ChatMessage(role="user", content="x" * 40),)
    assert tokens_wanted(Request(model="m", messages=messages)) == 10
    assert tokens_wanted(Request(model="m", messages=messages, sampling=SamplingParams(n=2, max_tokens=50))) == 110
    assert tokens_wanted(Request(model="m", messages=messages, tools=({"x": "y" * 32},))) == 20
    assert tokens_wanted(Request(model="m", kind="ids", prompt_ids=pack_ids(range(7)))) == 7
    assert tokens_wanted(Request(model="m", kind="embedding", inputs=("x" * 8, (1, 2, 3)))) == 5
    asked = ("x" * 40, "y" * 4, "y" * 4, "y" * 4)  # a query that is read with each of three documents
    assert tokens_wanted(Request(model="m", kind="score", inputs=asked, pairs=Pairs())) == 33
    assert tokens_wanted(Request(model="m", kind="embedding", inputs=asked, pairs=Pairs())) == 13
