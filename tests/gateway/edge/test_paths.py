"""Paths put together in other ways than ours: slashes too many mean nothing, one /v1 off is told where it is."""

from __future__ import annotations

import anthropic
import openai
import pytest

from gateway.edge.paths import plain
from tests.gateway.edge.asks import ASK, CHAT
from tests.ring import Ring

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/", "/"),
        ("//", "/"),
        ("/v1/models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("//v1//models//", "/v1/models"),
        ("/v1/models/org/name", "/v1/models/org/name"),
    ],
)
def test_slashes_too_many_mean_nothing(path: str, meant: str) -> None:
    assert plain(path) == meant


async def test_a_route_is_found_with_slashes_too_many(ring: Ring) -> None:
    for path in (f"{CHAT}/", f"/{CHAT}", "/v1//chat/completions"):
        response = await ring.http.post(f"{ring.url}{path}", json=ASK)
        assert response.status_code == 200, path
    models = await ring.http.get("/v1/models/")
    assert [one["id"] for one in models.json()["data"]] == ["tiny"]


async def test_openais_client_without_v1_is_told_where_the_route_is(ring: Ring) -> None:
    async with openai.AsyncOpenAI(base_url=ring.url, api_key="x", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match=r"It is /v1/chat/completions: base URLs .* end with /v1"):
            await client.chat.completions.create(**ASK)


async def test_anthropics_client_with_v1_is_told_where_the_route_is(ring: Ring) -> None:
    async with anthropic.AsyncAnthropic(base_url=f"{ring.url}/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(anthropic.NotFoundError, match=r"It is /v1/messages: "):
            await client.messages.create(model="tiny", max_tokens=9, messages=[{"role": "user", "content": "hi"}])


async def test_a_path_that_nobody_could_mean_has_no_hint(ring: Ring) -> None:
    for path in ("/chat", "/v1/audio/speech", "/v1/v1/nothing"):
        response = await ring.http.post(path, json=ASK)
        assert response.status_code == 404 and "It is" not in response.text
