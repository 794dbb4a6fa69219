"""POST /v1/messages: Anthropic's own Python client is served, whole and streamed, waiting and not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import anyio
import pytest
from anthropic import Anthropic, AsyncAnthropic

from tests.gateway.edge.asks import still_serves
from tests.gateway.edge.sse import read
from tests.ring import Ring
from tests.script import Script, say, tag, think
from wire.errors import InternalError
from wire.messages import unpack_ids

pytestmark = pytest.mark.anyio

PATH = "/v1/messages"
ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {
    "name": "add",
    "description": "adds",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}


@pytest.fixture
async def client(ring: Ring) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=ring.url, api_key="none", max_retries=0) as opened:
        yield opened


def asked(ring: Ring) -> Any:
    return ring.replica.requests[-1].request


async def test_a_message_whole_and_streamed(ring: Ring, client: Any) -> None:
    ring.replica.play(*say("hello", " world"))
    message = await client.messages.create(**ASK, system="be brief", metadata={"user_id": "u"}, extra_body={"top_k": 5})
    assert [block.text for block in message.content] == ["hello world"]
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "end_turn", None)
    assert message.usage.output_tokens == 3 and message.usage.input_tokens > 0
    request = asked(ring)
    assert (request.instructions, request.sampling.top_k, request.sampling.max_tokens) == ("be brief", 5, 50)
    async with client.messages.stream(**ASK) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == "hello world" and final.content[0].text == "hello world"
    assert final.usage.output_tokens == 3


async def test_the_blocking_client_answers_streams_and_counts(ring: Ring) -> None:
    ring.replica.play(*say("hello", " world"))

    def ask(client: Anthropic) -> tuple[str, str, int]:
        whole = client.messages.create(**ASK)
        with client.messages.stream(**ASK) as stream:
            streamed = stream.get_final_text()
        return whole.content[0].text, streamed, client.messages.count_tokens(**counted()).input_tokens

    with Anthropic(base_url=ring.url, api_key="none", max_retries=0) as client:
        whole, streamed, count = await anyio.to_thread.run_sync(ask, client)
    assert (whole, streamed) == ("hello world", "hello world") and count > 0


async def test_the_events_of_a_stream_come_in_anthropics_order(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say("hello", " world"))
    fields = {"thinking": {"type": "enabled", "budget_tokens": 40}}
    response = await ring.http.post(PATH, json={**ASK, **fields, "stream": True})
    events = read(response.text).events
    names = [event.name for event in events if event.name != "content_block_delta"]
    block = ["content_block_start", "content_block_stop"]
    assert names == ["message_start", "ping", *block, *block, "message_delta", "message_stop"]
    assert all(event.json()["type"] == event.name for event in events)
    started = events[0].json()["message"]
    assert started["content"] == [] and started["stop_reason"] is None and started["usage"]["input_tokens"] > 0
    kinds = [event.json()["content_block"]["type"] for event in events if event.name == "content_block_start"]
    assert kinds == ["thinking", "text"]
    end = events[-2].json()
    assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert end["usage"]["output_tokens"] == 6
    assert end["usage"]["output_tokens_details"] == {"thinking_tokens": 1}
    assert "[DONE]" not in response.text


async def test_thinking_is_a_block_of_its_own_and_off_unless_asked_for(ring: Ring, client: Any) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say("hello"))
    message = await client.messages.create(**ASK, thinking={"type": "enabled", "budget_tokens": 40})
    assert [(block.type, getattr(block, "thinking", "")) for block in message.content] == [
        ("thinking", "hidden "),
        ("text", ""),
    ]
    assert asked(ring).budget_tokens == 40
    ring.replica.play(*say("hello"))
    for thinking, effort in (
        ({}, "none"),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "xhigh"),
    ):
        await client.messages.create(**ASK, **thinking)
        assert (asked(ring).effort, asked(ring).budget_tokens) == (effort, None)


async def test_the_stop_sequence_that_ended_a_message_is_named(ring: Ring, client: Any) -> None:
    ring.replica.play(*say("one ", "EN", "D-", "OF", "two "))
    for sequences in (["END-OF"], ["nope", "END-OF"]):
        message = await client.messages.create(**ASK, stop_sequences=sequences)
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END-OF")
        assert message.content[0].text == "one "
    cut = await client.messages.create(**{**ASK, "max_tokens": 1})
    assert (cut.stop_reason, cut.stop_sequence) == ("max_tokens", None)


async def test_a_schema_for_the_answer_is_a_grammar(ring: Ring, client: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    ring.replica.play(*say(*'{"a": 1}'))
    await client.messages.create(**ASK, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert asked(ring).sampling.grammar.kind == "json_schema"
    with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format"):
        await client.messages.create(**ASK, output_config={"format": {"type": "nope"}})


async def test_an_answer_that_was_begun_is_gone_on_with(ring: Ring, client: Any) -> None:
    ring.replica.play(*say(*" is it"))
    talk = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "text", "text": "<|end|> So"}]},
    ]
    message = await client.messages.create(**{**ASK, "messages": talk})
    assert message.content[0].text == " is it" and asked(ring).continues and asked(ring).effort == "none"
    prompt = ring.replica.requests[-1].prompt
    assert prompt is not None
    text = ring.replica.vocabulary.decode_bytes(unpack_ids(prompt.token_ids)).decode()
    await client.messages.create(**ASK)
    plain = ring.replica.requests[-1].prompt
    assert plain is not None
    assert text == ring.replica.vocabulary.decode_bytes(unpack_ids(plain.token_ids)).decode() + "<|end|> So"
    count = await client.messages.count_tokens(**{**counted(), "messages": talk})
    assert count.input_tokens == prompt.num_tokens == len(unpack_ids(plain.token_ids)) + len("<|end|> So")


async def test_one_call_only_where_parallel_calls_are_off(ring: Ring, client: Any) -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    ring.replica.play(*say(*f"{call}\n{call}"))
    ask = {**ASK, "max_tokens": 500, "tools": [TOOL]}
    for choice, count in (
        ({"type": "auto"}, 2),
        ({"type": "auto", "disable_parallel_tool_use": True}, 1),
        ({"type": "any", "disable_parallel_tool_use": True}, 1),
        ({"type": "tool", "name": "add"}, 1),
    ):
        message = await client.messages.create(**ask, tool_choice=choice)
        assert [block.type for block in message.content] == ["tool_use"] * count
        assert (asked(ring).sampling.grammar is not None) is (choice["type"] != "auto")
    await client.messages.create(**ask, tool_choice={"type": "none"})
    assert not asked(ring).tools and asked(ring).sampling.grammar is None


async def test_documents_of_text_are_read_as_text(ring: Ring, client: Any) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "the facts"}
    blocks = {"type": "content", "content": [{"type": "text", "text": "more"}]}
    document = {"type": "document", "source": source, "title": "Facts", "context": "of 1999"}
    content = [document, {"type": "document", "source": blocks}, {"type": "text", "text": "what?"}]
    cached = [{"type": "text", "text": "rules", "cache_control": {"type": "ephemeral"}}]
    await client.messages.create(**{**ASK, "messages": [{"role": "user", "content": content}]}, system=cached)
    assert asked(ring).messages[0].content == "Facts\nof 1999\nthe facts\nmore\nwhat?"
    assert asked(ring).instructions == "rules"


async def test_batches_are_refused_with_the_reason(ring: Ring, client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match="batches"):
        await client.messages.batches.create(requests=[{"custom_id": "a", "params": ASK}])
    with pytest.raises(anthropic.NotFoundError, match="batches"):
        await client.messages.batches.retrieve("batch_1")


async def test_tools_go_in_and_their_calls_come_out_streamed_and_whole(ring: Ring, client: Any) -> None:
    ask = {**ASK, "max_tokens": 500, "tools": [TOOL]}
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    ring.replica.play(*say(*call))
    message = await client.messages.create(**ask)
    (block,) = message.content
    assert (block.type, block.name, block.input) == ("tool_use", "add", {"a": 1})
    assert message.stop_reason == "tool_use"
    (shown,) = asked(ring).tools
    assert shown["function"]["parameters"] == TOOL["input_schema"]
    async with client.messages.stream(**ask) as stream:
        final = await stream.get_final_message()
    assert (final.content[0].input, final.stop_reason) == ({"a": 1}, "tool_use")


async def test_a_conversation_with_tool_results_and_thinking_goes_into_the_request(ring: Ring, client: Any) -> None:
    ring.replica.play(*say("hello"))
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "calling"},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "7"}]},
                {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    await client.messages.create(**{**ASK, "messages": messages}, system=[{"type": "text", "text": "rules"}])
    user, assistant, result, more = asked(ring).messages
    assert (user.content, more.content, asked(ring).instructions) == ("a\nb", "go on", "rules")
    assert (assistant.content, assistant.reasoning) == ("calling", "hm")
    assert (assistant.tool_calls[0].name, assistant.tool_calls[0].arguments) == ("add", '{"a":1}')
    assert (result.role, result.content, result.tool_call_id) == ("tool", "7", "t1")


def counted() -> dict[str, Any]:
    return {name: value for name, value in ASK.items() if name != "max_tokens"}


async def test_tokens_are_counted_as_the_request_would_have_them(ring: Ring, client: Any) -> None:
    fields = {"system": "be brief", "tools": [TOOL]}
    count = await client.messages.count_tokens(**counted(), **fields)
    await client.messages.create(**ASK, **fields)
    prompt = ring.replica.requests[-1].prompt
    assert prompt is not None and count.input_tokens == len(unpack_ids(prompt.token_ids))


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


def document(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "document", **fields}]}]


USER = [{"role": "user", "content": "a"}]
BEGUN = [*USER, {"role": "assistant", "content": "so"}]
USE = {"type": "tool_use", "id": "t", "name": "add", "input": {}}
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("max_tokens", {"max_tokens": None}),
    ("max_tokens", {"max_tokens": 0}),
    ("temperature", {"temperature": 3}),
    ("stop_sequences", {"stop_sequences": [""]}),
    ("messages", {"messages": []}),
    ("messages[1]", {"messages": [*USER, {"role": "assistant", "content": "so "}]}),
    ("messages[1]", {"messages": [*USER, {"role": "assistant", "content": ""}]}),
    ("messages[1]", {"messages": [*USER, {"role": "assistant", "content": [USE]}]}),
    ("messages", {"messages": [{"role": "assistant", "content": "so"}]}),
    ("messages[1]", {"messages": BEGUN, "tools": [TOOL], "tool_choice": {"type": "any"}}),
    ("messages[1]", {"messages": BEGUN, "thinking": {"type": "enabled", "budget_tokens": 9}}),
    ("messages[1]", {"messages": BEGUN, "output_config": {"format": {"type": "json_object"}}}),
    ("messages[0].role", {"messages": [{"role": "boss", "content": "a"}]}),
    ("messages[0].content[1]", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]}),
    ("messages[0].content[0].source", {"messages": document()}),
    ("messages[0].content[0].source", {"messages": document(source={"type": "base64", "data": "", "media_type": "x"})}),
    ("messages[0].content[0].source", {"messages": document(source={"type": "url", "url": "http://a"})}),
    ("messages[0].content[0].source.content", {"messages": document(source={"type": "content", "content": [1]})}),
    ("messages[0].content[0].source[0]", {"messages": document(source={"type": "content", "content": [IMAGE]})}),
    ("messages[0].content[0].citations", {"messages": document(citations={"enabled": True})}),
    ("messages[0].content[0].tool_use_id", {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}),
    ("system[0]", {"system": [IMAGE]}),
    ("tools[0].type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ("tools[0].input_schema", {"tools": [{"name": "f"}]}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}),
    ("tool_choice.type", {"tools": [TOOL], "tool_choice": {"type": "some"}}),
    ("tool_choice.type", {"tools": [TOOL], "tool_choice": {}}),
    ("tool_choice.name", {"tools": [TOOL], "tool_choice": {"type": "tool"}}),
    ("thinking.type", {"thinking": {"type": "wild"}}),
    ("thinking.budget_tokens", {"thinking": {"type": "enabled"}}),
    ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": -1}}),
    ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": ASK["max_tokens"]}}),
    ("tools[1].name", {"tools": [TOOL, TOOL]}),
    ("stop", {"stop": ["x"]}),
    ("max_completion_tokens", {"max_completion_tokens": 5}),
    ("output_config.format.type", {"output_config": {"format": {}}}),
    ("container", {"container": "c"}),
    ("mcp_servers", {"mcp_servers": [{}]}),
]


async def test_wrong_values_are_refused_in_anthropics_shape_naming_the_field(ring: Ring) -> None:
    for param, fields in WRONG:
        for stream in (False, True):
            response = await ring.http.post(PATH, json={**ASK, **fields, "stream": stream})
            assert response.status_code == 400, fields
            body = response.json()
            assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
            assert body["error"]["message"].startswith(f"{param}:"), body
    assert ring.replica.requests == []
    await still_serves(ring)


async def test_errors_are_the_clients_own_classes(ring: Ring, client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        await client.messages.create(**ASK, extra_body={"temperature": 9})
    with pytest.raises(anthropic.NotFoundError, match="not served"):
        await client.messages.create(**{**ASK, "model": "other"})
    with pytest.raises(anthropic.BadRequestError, match="context"):
        await client.messages.create(**{**ASK, "messages": [{"role": "user", "content": "word " * 9000}]})
    ring.replica.script = Script(say("one "), error=InternalError("the engine failed"))
    with pytest.raises(anthropic.APIStatusError, match="the engine failed"):
        await client.messages.create(**ASK)
    stream = await client.messages.create(**ASK, stream=True)
    with pytest.raises(anthropic.APIStatusError, match="the engine failed"):
        async for _ in stream:
            pass


async def test_models_are_listed_for_this_client_too(client: Any) -> None:
    assert [model.id async for model in client.models.list()] == ["tiny"]
    model = await client.models.retrieve("tiny")
    assert (model.type, model.display_name, model.max_input_tokens) == ("model", "tiny", 2048)
    with pytest.raises(anthropic.NotFoundError):
        await client.models.retrieve("claude-9")


async def test_every_error_below_this_path_has_anthropics_shape(ring: Ring) -> None:
    answers = [
        (await ring.http.get(PATH), 405, "invalid_request_error"),
        (await ring.http.post(f"{PATH}/nope"), 404, "not_found_error"),
        (await ring.http.post(PATH, content=b"{"), 400, "invalid_request_error"),
        (await ring.http.post(PATH, json=ASK, headers={"Origin": "http://evil.example"}), 403, "permission_error"),
    ]
    for response, status, kind in answers:
        assert response.status_code == status
        assert response.json()["error"]["type"] == kind
