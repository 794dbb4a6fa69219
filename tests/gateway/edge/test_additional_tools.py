"""Tools that stand in the input of a response hold for those that go on from it, as all that was said there does."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.edge.identity import has_tools
from tests.gateway.edge.asks import RESPONSES
from tests.gateway.edge.sse import read
from tests.gateway.edge.store import keys_with, until_nothing_has
from tests.ring import Ring
from tests.script import say

pytestmark = pytest.mark.anyio

F = {"type": "function", "name": "f", "description": "first"}
G = {"type": "function", "name": "g"}
PATCH = {"type": "custom", "name": "patch", "description": "of text"}


def additional(*tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "additional_tools", "role": "developer", "tools": list(tools)}


async def ask(ring: Ring, *items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "input": [*items, {"role": "user", "content": "hi"}], **fields}
    response = await ring.http.post(RESPONSES, json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def shown(ring: Ring) -> list[str]:
    return [tool["function"]["name"] for tool in ring.replica.requests[-1].request.tools]


async def test_tools_of_earlier_inputs_are_tools_of_all_that_follows(ring: Ring) -> None:
    first = await ask(ring, additional(F, PATCH, {"type": "web_search"}), tools=[G])
    assert first["additional_tools"] == [F, PATCH] and first["tools"][0]["name"] == "g"
    second = await ask(ring, previous_response_id=first["id"])
    assert shown(ring) == ["f", "patch"], "those of `tools` are for one request only, as OpenAI has it"
    third = await ask(ring, additional(G), previous_response_id=second["id"], tools=[])
    assert shown(ring) == ["f", "patch", "g"]
    assert (await ring.http.get(f"{RESPONSES}/{third['id']}")).json()["additional_tools"] == [F, PATCH, G]
    fields = {"model": "tiny", "input": "hi", "previous_response_id": third["id"]}
    counted = await ring.http.post(f"{RESPONSES}/input_tokens", json=fields)
    ring.replica.play(*say("hello"))
    streamed = read((await ring.http.post(RESPONSES, json={**fields, "stream": True})).text)
    assert shown(ring) == ["f", "patch", "g"]
    assert counted.json()["input_tokens"] == streamed.events[-1].json()["response"]["usage"]["input_tokens"]


async def test_a_tool_that_is_declared_again_is_as_it_was_said_last(ring: Ring) -> None:
    first = await ask(ring, additional(F, PATCH))
    new = {**F, "description": "second"}
    await ask(ring, additional(new), previous_response_id=first["id"])
    tools = ring.replica.requests[-1].request.tools
    assert shown(ring) == ["f", "patch"] and tools[0]["function"]["description"] == "second"
    await ask(ring, previous_response_id=first["id"], tools=[PATCH, new])
    assert shown(ring) == ["patch", "f"]


async def test_a_tool_of_an_earlier_input_can_be_chosen_and_is_called_in_its_own_way(ring: Ring) -> None:
    first = await ask(ring, additional(PATCH))
    ring.replica.play(*say(*'<tool_call>\n{"name": "patch", "arguments": {"input": "a b"}}\n</tool_call>'))
    second = await ask(ring, previous_response_id=first["id"], tool_choice={"type": "custom", "name": "patch"})
    assert ring.replica.requests[-1].request.sampling.grammar is not None
    assert [(one["type"], one.get("input")) for one in second["output"]] == [("custom_tool_call", "a b")]


async def test_a_response_that_is_still_being_made_has_its_tools_already(ring: Ring) -> None:
    body = {"model": "tiny", "input": [additional(F), {"role": "user", "content": "hi"}], "background": True}
    begun = (await ring.http.post(RESPONSES, json=body)).json()
    assert begun["additional_tools"] == [F]
    await ask(ring, previous_response_id=begun["id"])
    assert shown(ring) == ["f"]


async def test_only_ids_of_such_responses_say_so_and_one_that_lies_is_not_found(ring: Ring) -> None:
    plain = await ask(ring, tools=[F])
    assert not has_tools(plain["id"]) and "additional_tools" not in plain
    assert has_tools((await ask(ring, additional(F)))["id"])
    fields = {"model": "tiny", "input": "hi", "previous_response_id": f"{plain['id']}t"}
    answer = await ring.http.post(RESPONSES, json=fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "previous_response_id")


async def test_they_are_gone_with_the_response(ring: Ring) -> None:
    first = await ask(ring, additional({**F, "description": "a secret word"}))
    assert await keys_with(ring, b"secret word")
    assert (await ring.http.delete(f"{RESPONSES}/{first['id']}")).status_code == 200
    await until_nothing_has(ring, b"secret word")
