"""Messages in the shapes that other clients than Anthropic's own insist on."""

from __future__ import annotations

import pytest

from tests.gateway.edge.sse import read
from tests.ring import Ring
from tests.script import say

pytestmark = pytest.mark.anyio


async def test_a_text_block_has_its_text_and_no_field_without_a_value(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    ask = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    whole = (await ring.http.post("/v1/messages", json=ask)).json()
    assert whole["content"] == [{"type": "text", "text": "hello"}], "the AI SDK refuses an answer with citations: null"
    stream = read((await ring.http.post("/v1/messages", json={**ask, "stream": True})).text)
    starts = [event.json() for event in stream.events if event.json()["type"] == "content_block_start"]
    assert [start["content_block"] for start in starts] == [{"type": "text", "text": ""}]


async def test_the_format_counts_under_its_older_name_too(ring: Ring) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    ask = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    form = {"type": "json_schema", "schema": schema}
    assert (await ring.http.post("/v1/messages", json={**ask, "output_format": form})).status_code == 200
    grammar = ring.replica.requests[-1].request.sampling.grammar
    assert grammar is not None and grammar.kind == "json_schema"
    twice = {**ask, "output_format": form, "output_config": {"format": form}}
    for body, said in (({**ask, "output_format": {}}, "output_format.type: must be"), (twice, "output_format: cannot")):
        response = await ring.http.post("/v1/messages", json=body)
        assert response.status_code == 400 and response.json()["error"]["message"].startswith(said)
