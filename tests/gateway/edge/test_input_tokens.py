"""POST /v1/responses/input_tokens: the number that the response itself would have."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.gateway.edge.asks import still_serves
from tests.ring import MakeRing, Ring
from tests.script import say, tag, think

pytestmark = pytest.mark.anyio

TOOL: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}}


async def test_a_count_is_that_of_the_response_with_all_that_was_said_before(make_ring: MakeRing) -> None:
    async with make_ring(partitions=3) as ring, ring.openai() as client:
        ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say("hello"))
        conversation = await client.conversations.create(items=[{"role": "user", "content": "earlier"}])
        first = await client.responses.create(model="tiny", input="hi")
        ways: list[dict[str, Any]] = [
            {"input": "hi"},
            {"input": [{"role": "user", "content": "hi"}], "instructions": "be brief", "tools": [TOOL]},
            {"input": "more", "previous_response_id": first.id},
            {"input": "more", "conversation": conversation.id},
            {"input": "yet more", "conversation": conversation.id},
        ]
        for fields in ways:
            counted = await client.responses.input_tokens.count(model="tiny", **fields)
            answer = await client.responses.create(model="tiny", **fields)
            assert counted.object == "response.input_tokens"
            assert counted.input_tokens == answer.usage.input_tokens, fields
        bare = await client.responses.input_tokens.count(model="tiny", previous_response_id=first.id)
        assert first.usage.input_tokens < bare.input_tokens


async def test_a_count_stores_and_generates_nothing_and_refuses_what_a_response_would(ring: Ring) -> None:
    async with ring.openai() as client:
        count = client.responses.input_tokens.count
        assert (await count(model="tiny", input="word " * 1000)).input_tokens > 2048, "longer than the context"
        with pytest.raises(openai.BadRequestError, match="input"):
            await count(model="tiny")
        with pytest.raises(openai.NotFoundError):
            await count(model="tiny", input="hi", previous_response_id="resp_" + "0" * 40)
        with pytest.raises(openai.NotFoundError):
            await count(model="other", input="hi")
    assert ring.replica.requests == []
    await still_serves(ring)
