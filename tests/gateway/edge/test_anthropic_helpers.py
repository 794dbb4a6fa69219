"""What Anthropic's client builds on top of the routes: streams that gather, classes, a loop over tools, raw headers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pydantic
import pytest
from anthropic import AsyncAnthropic

from tests.ring import MakeRing, Ring
from tests.script import Script, say, tag, think

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 1500, "messages": [{"role": "user", "content": "hi"}]}
TOOL: Any = {
    "name": "add",
    "description": "adds",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


class Point(pydantic.BaseModel):
    """A place."""

    x: int
    y: int


@pytest.fixture
async def client(ring: Ring) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=ring.url, api_key="none", max_retries=0) as opened:
        yield opened


async def test_a_system_message_stands_where_it_is(ring: Ring, client: Any) -> None:
    ring.replica.play(*say("hello"))
    told: Any = {"role": "system", "content": [{"type": "text", "text": "be brief"}]}
    user: Any = {"role": "user", "content": "hi"}
    await client.messages.create(**{**ASK, "messages": [user, {"role": "assistant", "content": "so"}, told, user]})
    roles = [(message.role, message.content) for message in ring.replica.requests[-1].request.messages]
    assert roles == [("user", "hi"), ("assistant", "so"), ("system", "be brief"), ("user", "hi")]


@pytest.mark.parametrize("thinking", [{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}])
async def test_the_stream_helper_gathers_thinking_text_and_calls(ring: Ring, client: Any, thinking: Any) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden ", "thought"), *tag("</think>"), *say(*f"so {CALL}"))
    async with client.messages.stream(**ASK, tools=[TOOL], thinking=thinking) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_message()
    thoughts, said, call = final.content
    assert (thoughts.thinking, said.text, call.name, call.input) == ("hidden thought", "so", "add", {"a": 1, "b": 2})
    whole = await client.messages.create(**ASK, tools=[TOOL], thinking=thinking)
    assert whole.content[0].signature == thoughts.signature != "", "clients send back only thinking that is signed"
    back: Any = [*ASK["messages"], {"role": "assistant", "content": whole.content}, *ASK["messages"]]
    await client.messages.create(**{**ASK, "messages": back})
    assert ring.replica.requests[-1].request.messages[1].reasoning == "hidden thought"
    assert (final.stop_reason, final.usage.output_tokens_details.thinking_tokens) == ("tool_use", 2)
    pieces = [event for event in events if event.type == "input_json"]
    assert "".join(event.partial_json for event in pieces) == '{"a": 1, "b": 2}'
    assert pieces[-1].snapshot == {"a": 1, "b": 2}
    assert [event.thinking for event in events if event.type == "thinking"] == ["hidden ", "thought"]


async def test_a_message_is_parsed_into_a_class_by_each_of_the_ways(ring: Ring, client: Any) -> None:
    ring.replica.play(*say(*'{"x": 1, "y": 2}'))
    whole = await client.messages.parse(**ASK, output_format=Point)
    beta = await client.beta.messages.parse(**ASK, output_format=Point)
    async with client.messages.stream(**ASK, output_format=Point) as stream:
        streamed = await stream.get_final_message()
    assert whole.parsed_output == beta.parsed_output == streamed.parsed_output == Point(x=1, y=2)
    assert ring.replica.requests[-1].request.sampling.grammar is not None


async def test_the_loop_over_tools_runs_to_its_answer(ring: Ring, client: Any) -> None:
    ring.replica.script = lambda request: Script(say(*("3" if request.messages[-1].role == "tool" else CALL)))

    @anthropic.beta_async_tool
    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    final = await client.beta.messages.tool_runner(**ASK, tools=[add]).until_done()
    assert final.content[0].text == "3"
    assert ring.replica.requests[-1].request.messages[-1].content == "3"
    roles = [message.role for message in ring.replica.requests[-1].request.messages]
    assert roles == ["user", "assistant", "tool"], "no thread is kept here: all messages come with each request"
    assert ring.replica.requests[-1].request.tools


async def test_the_beta_paths_of_the_client_are_the_same_routes(ring: Ring, client: Any) -> None:
    ring.replica.play(*say("hello"))
    assert (await client.beta.messages.create(**ASK, betas=["any"])).content[0].text == "hello"
    async with client.beta.messages.stream(**ASK) as stream:
        assert await stream.get_final_text() == "hello"
    asked = {name: value for name, value in ASK.items() if name != "max_tokens"}
    assert (await client.beta.messages.count_tokens(**asked)).input_tokens > 0
    assert [model.id async for model in client.beta.models.list()] == ["tiny"]


async def test_the_id_of_a_request_is_at_hand_in_answers_streams_and_errors(ring: Ring, client: Any) -> None:
    ring.replica.play(*say("hello"))
    message = await client.messages.create(**ASK, extra_headers={"X-Request-Id": "mine"})
    assert message._request_id == "mine"
    async with client.messages.stream(**ASK) as stream:
        assert await stream.get_final_text() == "hello"
        assert stream.request_id == stream.response.headers["x-request-id"]
    with pytest.raises(anthropic.NotFoundError) as refused:
        await client.models.retrieve("other", extra_headers={"X-Request-Id": "wrong"})
    assert refused.value.request_id == "wrong"


async def test_an_error_has_this_clients_shape_on_paths_that_both_dialects_have(ring: Ring, client: Any) -> None:
    wanted = {"type": "error", "error": {"type": "not_found_error", "message": "The model 'other' is not served here."}}
    with pytest.raises(anthropic.NotFoundError) as refused:
        await client.models.retrieve("other")
    assert refused.value.body == wanted
    with pytest.raises(anthropic.NotFoundError) as nowhere:
        await client.post("/v1/files", body={}, cast_to=object)
    body: Any = nowhere.value.body
    assert body["error"]["type"] == "not_found_error"
    theirs = (await ring.http.get("/v1/models/other")).json()
    assert theirs["error"]["code"] == "model_not_found", "OpenAI's clients send no anthropic-version"


async def test_a_full_server_is_said_to_be_so_with_the_time_to_wait(make_ring: MakeRing) -> None:
    async with make_ring(max_inflight=1) as ring:
        ring.replica.play(*say("hello"), finish=None)
        async with (
            AsyncAnthropic(base_url=ring.url, api_key="none", max_retries=0) as client,
            client.messages.stream(**ASK) as stream,
        ):
            await stream.__anext__()
            with pytest.raises(anthropic.RateLimitError) as refused:
                await client.messages.create(**ASK)
        body: Any = refused.value.body
        assert body["error"]["type"] == "rate_limit_error"
        assert int(refused.value.response.headers["retry-after"]) >= 1
