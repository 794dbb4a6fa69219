"""Keys through the ring: who is let in, what is told of limits, whose conversations and blocks are whose."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import openai
import pytest
from openai import AsyncOpenAI

from gateway.edge.tenancy.caller import Caller
from gateway.edge.tenancy.key_file import ApiKey, hash_of
from gateway.edge.tenancy.limits import Limits
from tests.gateway.edge.asks import ASK, CHAT, RESPONSES
from tests.gateway.edge.tenancy.conftest import KeyFile
from tests.ring import MakeRing, Ring
from tests.script import say
from wire.bus import Bus
from wire.ledger import Entry, Ledger
from wire.messages import Request

pytestmark = pytest.mark.anyio


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def ask(ring: Ring, key: str, path: str = CHAT, **fields: Any) -> httpx.Response:
    base = ASK if path == CHAT else {"model": "tiny", "input": "hi"}
    return await ring.http.post(path, json={**base, **fields}, headers=bearer(key))


async def ledger_of(ring: Ring, count: int) -> list[Entry]:
    """Wait for so many entries and return them."""
    ledger = Ledger(ring.bus.route)
    with anyio.fail_after(60):
        while len(found := [entry async for _, entry in ledger.read()]) < count:
            await anyio.sleep(0.01)
    return found


async def test_without_a_key_or_with_an_unknown_one_the_answer_is_401_in_openais_shape(guarded: Ring) -> None:
    for headers in ({}, bearer("nobody"), {"authorization": "Basic x"}, {"x-api-key": ""}):
        response = await guarded.http.post(CHAT, json=ASK, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        assert "nobody" not in response.text
    async with AsyncOpenAI(base_url=f"{guarded.url}/v1", api_key="nobody", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
    assert (await guarded.http.get("/tokenizer_info")).status_code == 401  # a template may say what a prompt hides
    assert not guarded.replica.requests


async def test_any_of_the_usual_headers_carries_the_key(guarded: Ring) -> None:
    for headers in (bearer("alice"), {"x-api-key": "alice"}, {"api-key": "alice"}, {"authorization": "bearer  alice"}):
        assert (await guarded.http.post(CHAT, json=ASK, headers=headers)).status_code == 200
    async with AsyncOpenAI(base_url=f"{guarded.url}/v1", api_key="alice", max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]


async def test_page_health_and_metrics_need_no_key_and_all_of_the_api_does(guarded: Ring) -> None:
    for path in ("/", "/health/live", "/metrics"):
        assert (await guarded.http.get(path)).status_code == 200
    assert (await guarded.http.get("/health/ready")).status_code in (200, 503)  # a busy machine's bus may seem away
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/v1/conversations"),
        ("POST", "/tokenize"),
        ("DELETE", "/v1/responses/x"),
    ):
        assert (await guarded.http.request(method, path)).status_code == 401, path


async def test_anthropics_path_is_answered_in_anthropics_shape(guarded: Ring) -> None:
    response = await guarded.http.post("/v1/messages", json={}, headers={"x-api-key": "nobody"})
    assert response.status_code == 401
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == "authentication_error"


async def test_keys_change_without_a_restart_and_open_streams_go_on(guarded: Ring, key_file: KeyFile) -> None:
    gate = anyio.Event()
    guarded.replica.play(*say("one "), *say("two "), before_end=gate)
    async with guarded.http.stream("POST", CHAT, json={**ASK, "stream": True}, headers=bearer("alice")) as stream:
        lines = stream.aiter_lines()
        while "one " not in await anext(lines):
            pass
        key_file.write(alice={"disabled": True}, carol={})
        with anyio.fail_after(60):
            while (await guarded.http.get("/v1/models", headers=bearer("carol"))).status_code != 200:
                await anyio.sleep(0.005)
        assert (await guarded.http.get("/v1/models", headers=bearer("alice"))).status_code == 403
        assert (await guarded.http.get("/v1/models", headers=bearer("bob"))).status_code == 401
        gate.set()
        assert [line async for line in lines if line][-1] == "data: [DONE]"


async def test_a_key_for_some_models_only_is_refused_the_others_with_403(guarded: Ring, key_file: KeyFile) -> None:
    key_file.write(dave={"models": ("other",)})
    with anyio.fail_after(60):
        while (response := await ask(guarded, "dave")).status_code == 401:
            await anyio.sleep(0.005)
    assert response.status_code == 403 and response.json()["error"]["param"] == "model"
    await guarded.until_idle()


async def test_conversations_and_cached_blocks_are_the_tenants_own(guarded: Ring) -> None:
    first = await ask(guarded, "alice", RESPONSES, store=True)
    found = f"{RESPONSES}/{first.json()['id']}"
    with anyio.fail_after(60):
        while (await guarded.http.get(found, headers=bearer("alice"))).status_code != 200:
            await anyio.sleep(0.01)
    assert (await guarded.http.get(found, headers=bearer("bob"))).status_code == 404
    assert (await ask(guarded, "bob", RESPONSES, previous_response_id=first.json()["id"])).status_code == 404
    for key in ("alice", "bob"):
        await ask(guarded, key)
    alice, bob = (running.prompt for running in guarded.replica.requests[-2:])
    assert alice is not None and bob is not None
    assert alice.token_ids == bob.token_ids and alice.block_root != bob.block_root
    assert [running.request.tenant for running in guarded.replica.requests] == ["alice", "alice", "bob"]


async def test_limits_are_told_in_headers_and_refusals_tell_when_to_come_back(
    make_ring: MakeRing, key_file: KeyFile
) -> None:
    key_file.write(alice={"requests_per_minute": 2, "tokens_per_minute": 10_000}, bob={"tokens_per_minute": 60})
    async with make_ring(api_keys=str(key_file.path)) as ring:
        first = await ask(ring, "alice", max_tokens=5)
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert first.headers["x-ratelimit-remaining-tokens"] == str(10_000 - 5)
        assert first.headers["x-ratelimit-reset-requests"].endswith("s")
        assert (await ask(ring, "alice", stream=True)).headers["x-ratelimit-remaining-requests"] == "0"
        async with AsyncOpenAI(base_url=f"{ring.url}/v1", api_key="alice", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
        assert refused.value.code == "rate_limit_exceeded"
        assert 0 < int(refused.value.response.headers["retry-after"]) <= 30
        assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"
        ring.replica.play(*say(*["one "] * 49))
        assert (await ask(ring, "bob", max_tokens=50)).status_code == 200
        await ring.until_idle()
        assert (await ask(ring, "bob", max_tokens=60)).status_code == 429, "what was used is gone"
        await ring.until_idle()


async def test_limits_on_anthropics_path_are_told_in_anthropics_words(make_ring: MakeRing, key_file: KeyFile) -> None:
    key_file.write(alice={"requests_per_minute": 1, "tokens_per_minute": 10_000})
    body = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
    async with make_ring(api_keys=str(key_file.path)) as ring:
        told = await ring.http.post("/v1/messages", json=body, headers={"x-api-key": "alice"})
        assert told.status_code == 200
        assert told.headers["anthropic-ratelimit-requests-remaining"] == "0"
        assert told.headers["anthropic-ratelimit-tokens-limit"] == "10000"
        assert told.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
        refused = await ring.http.post("/v1/messages", json=body, headers={"x-api-key": "alice"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
        assert int(refused.headers["retry-after"]) > 0


async def test_a_key_has_no_more_open_requests_than_it_may(make_ring: MakeRing, key_file: KeyFile) -> None:
    key_file.write(alice={"max_concurrent": 1})
    async with make_ring(api_keys=str(key_file.path)) as ring:
        ring.replica.play(*say("one "), finish=None)
        async with ring.http.stream("POST", CHAT, json={**ASK, "stream": True}, headers=bearer("alice")):
            refused = await ask(ring, "alice")
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        ring.replica.play(*say("hello"))
        with anyio.fail_after(60):
            while (await ask(ring, "alice")).status_code == 429:
                await anyio.sleep(0.005)


async def test_a_caller_may_put_its_requests_back_but_never_before_the_rank_of_its_key(bus: Bus) -> None:
    key = ApiKey(id="a", tenant="t", hash=hash_of("a"), priority=5)
    caller = Caller(key, Limits(bus.route))
    stamped = [caller.stamp(Request(model="m", priority=asked)) for asked in (-9, 0, 9)]
    assert [request.priority for request in stamped] == [5, 5, 9]
    assert {(request.tenant, request.key_id) for request in stamped} == {("t", "a")}


async def test_the_ledger_has_one_entry_for_each_way_a_request_can_end(guarded: Ring) -> None:
    guarded.replica.play(*say("one ", "two "))
    await ask(guarded, "alice")
    await ledger_of(guarded, 1)  # its entry may be written behind its answer, and behind that of the next
    await ask(guarded, "bob", max_tokens=1)
    await ledger_of(guarded, 2)
    guarded.replica.play(*say("one ", "two "), finish=None)
    async with guarded.http.stream("POST", CHAT, json={**ASK, "stream": True}, headers=bearer("alice")) as stream:
        lines = stream.aiter_lines()
        while "two " not in await anext(lines):
            pass
    entries = await ledger_of(guarded, 3)
    await guarded.until_idle()
    assert [(e.tenant, e.end, e.completion_tokens) for e in entries] == [
        ("alice", "stop", 3),
        ("bob", "length", 1),
        ("alice", "client_gone", 2),
    ]
    assert all(entry.prompt_tokens > 0 and entry.key_id == entry.tenant and entry.model == "tiny" for entry in entries)


async def test_without_a_file_of_keys_nobody_is_asked_and_the_ledger_is_kept(make_ring: MakeRing) -> None:
    async with make_ring() as ring:
        response = await ring.http.post(CHAT, json=ASK)
        assert response.status_code == 200
        assert not any(name.startswith("x-ratelimit") for name in response.headers)
        assert [(entry.tenant, entry.end) for entry in await ledger_of(ring, 1)] == [("", "stop")]
