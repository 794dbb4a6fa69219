"""Each field, item, part and block that the types of OpenAI's and Anthropic's clients know has an answer we chose.

A newer client may know more: then a test here fails until it is decided what becomes of that.
"""

from __future__ import annotations

import typing
from typing import Any

import msgspec
import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from anthropic.types import message_count_tokens_params as counted
from anthropic.types import message_create_params as message
from anthropic.types.beta import BetaContentBlockParam
from anthropic.types.beta import message_create_params as beta
from openai import NotFoundError
from openai.types import completion_create_params as completion
from openai.types import embedding_create_params as embedding
from openai.types import moderation_create_params as moderation
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionContentPartParam,
    ChatCompletionMessageParam,
    ChatCompletionToolUnionParam,
)
from openai.types.chat import completion_create_params as chat
from openai.types.conversations import conversation_create_params as conversation
from openai.types.responses import Response, ResponseInputContentParam, ResponseInputItemParam, ToolParam
from openai.types.responses import input_token_count_params as input_tokens
from openai.types.responses import response_create_params as response
from pydantic import TypeAdapter

from gateway.edge.schema.chat import ChatRequest
from gateway.edge.schema.completions import CompletionRequest
from gateway.edge.schema.content import MessageIn
from gateway.edge.schema.conversations import CreateConversation
from gateway.edge.schema.embeddings import EmbeddingRequest
from gateway.edge.schema.messages import MessagesRequest
from gateway.edge.schema.moderations import ModerationRequest
from gateway.edge.schema.responses import ResponsesRequest
from gateway.edge.schema.tools import is_unasked
from gateway.edge.schema.unknown import REFUSED
from tests.gateway.edge.asks import ASK, CHAT, RESPONSES
from tests.gateway.edge.sse import read
from tests.ring import Ring
from tests.script import say, tag, think

pytestmark = pytest.mark.anyio

# The client's type, ours, and the fields that say nothing about the answer: they are named in a header.
BODIES: list[tuple[Any, type[msgspec.Struct], set[str]]] = [
    (chat.CompletionCreateParamsBase, ChatRequest, {"prompt_cache_options", "verbosity"}),
    (completion.CompletionCreateParamsBase, CompletionRequest, set()),
    (response.ResponseCreateParamsBase, ResponsesRequest, {"access_programs", "background_options", "image"}),
    (input_tokens.InputTokenCountParams, ResponsesRequest, {"personality"}),
    (embedding.EmbeddingCreateParams, EmbeddingRequest, set()),
    (moderation.ModerationCreateParams, ModerationRequest, set()),
    (conversation.ConversationCreateParams, CreateConversation, set()),
    (
        message.MessageCreateParamsBase,
        MessagesRequest,
        {"cache_control", "diagnostics", "inference_geo", "speed", "user_profile_id", "workspace_id"},
    ),
    (
        counted.MessageCountTokensParams,
        MessagesRequest,
        {"cache_control", "speed", "user_profile_id", "workspace_id"},
    ),
    (
        beta.MessageCreateParamsBase,
        MessagesRequest,
        {"betas", "billing_policy", "cache_control", "context_management", "diagnostics", "fallback_credit_token"}
        | {"fallbacks", "inference_geo", "speed", "user_profile_id", "workspace_id"},
    ),
]
ITEMS = {"message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
ITEMS |= {"reasoning", "item_reference", "additional_tools"}
TOOLS = {"function", "custom", "namespace"}
PARTS = {"text", "input_text", "output_text", "refusal"}
BLOCKS = {"text", "document", "search_result", "thinking", "redacted_thinking", "tool_use", "tool_result"}


def members(union: Any) -> list[Any]:
    """Return the types that a union is made of."""
    inner = typing.get_args(union)
    return [one for member in inner for one in members(member)] if inner and not isinstance(union, type) else [union]


def kinds(union: Any) -> set[str]:
    """Return the words that tell the members of a union apart, which have one field for that."""
    found: set[str] = set()
    for member in members(union):
        hint = getattr(member, "model_fields", {}).get("type") if isinstance(member, type) else None
        shown = hint.annotation if hint is not None else typing.get_type_hints(member).get("type")
        found |= set(members_of_literal(shown))
    return found


def members_of_literal(hint: Any) -> list[str]:
    if typing.get_origin(hint) is typing.Literal:
        return [word for word in typing.get_args(hint) if isinstance(word, str)]
    return [word for inner in typing.get_args(hint) for word in members_of_literal(inner)]


@pytest.mark.parametrize(("kind", "ours", "harmless"), BODIES)
def test_each_field_is_taken_refused_or_named_as_harmless(
    kind: Any, ours: type[msgspec.Struct], harmless: set[str]
) -> None:
    theirs = set(typing.get_type_hints(kind))
    assert len(theirs) > 1, "the client's type has another shape now"
    refused = REFUSED.keys() | getattr(ours, "moved", {}).keys()
    assert theirs - set(ours.__struct_encode_fields__) - refused == harmless


def test_each_field_of_a_chat_message_is_read() -> None:
    theirs = {name for one in members(ChatCompletionMessageParam) for name in typing.get_type_hints(one)}
    assert len(theirs) > 5 and theirs <= set(MessageIn.__struct_encode_fields__)


async def test_each_item_of_a_response_is_taken_or_refused_by_its_place(ring: Ring) -> None:
    theirs = kinds(ResponseInputItemParam)
    assert theirs >= ITEMS and len(theirs) > 20
    for kind in sorted(theirs - ITEMS):
        items = [{"role": "user", "content": "hi"}, {"type": kind, "id": "x"}]
        answer = await ring.http.post(RESPONSES, json={"model": "tiny", "input": items})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[1].type"), kind


OF_OTHERS: list[dict[str, Any]] = [
    {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": "x"}},
    {
        "type": "shell_call_output",
        "call_id": "c",
        "output": [{"stdout": "x", "stderr": "", "outcome": {"type": "timeout"}}],
    },
    {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"q": "x"}},
    {"type": "compaction", "encrypted_content": "x"},
    {"type": "compaction_trigger"},
]


async def test_an_item_that_is_not_taken_is_refused_for_its_type_whatever_else_it_holds(ring: Ring) -> None:
    for item in OF_OTHERS:
        answer = await ring.http.post(RESPONSES, json={"model": "tiny", "input": [item]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[0].type"), item
    output = {"type": "function_call_output", "call_id": "c"}
    for item, field in (
        ({**output, "output": {"q": 1}}, "output"),
        ({**output, "output": [{"text": "x"}]}, "output[0].type"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}, "arguments"),
        ({"role": "tool", "content": "x"}, "role"),
        ({"role": "user", "content": [{"text": "x"}]}, "content[0].type"),
    ):
        answer = await ring.http.post(RESPONSES, json={"model": "tiny", "input": [item]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"input[0].{field}"), item
    ask = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": []}, ASK["messages"][0]]}
    answer = await ring.http.post("/v1/messages", json=ask)
    assert answer.status_code == 400 and "messages[0].content" in answer.json()["error"]["message"]


async def test_each_tool_is_taken_left_out_or_refused_by_its_place(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    theirs = kinds(ToolParam)
    assert theirs >= TOOLS and len(theirs) > 10
    for kind in sorted(theirs - TOOLS):
        answer = await ring.http.post(RESPONSES, json={"model": "tiny", "input": "hi", "tools": [{"type": kind}]})
        if is_unasked({"type": kind}):
            assert answer.status_code == 200 and kind in answer.headers["x-headrace-warning"]
        else:
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[0].type"), kind
    assert kinds(ChatCompletionToolUnionParam) == {"function", "custom"}


async def test_tools_that_stand_in_the_input_are_tools(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    old, new = ({"type": "function", "name": "f", "description": text} for text in ("old", "new"))
    inner = {"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "c"}]}
    items: list[dict[str, Any]] = [
        {"type": "additional_tools", "role": "developer", "tools": [old, inner]},
        {"role": "user", "content": "hi"},
        {"type": "additional_tools", "role": "developer", "tools": [new, {"type": "web_search"}]},
    ]
    ask = {"model": "tiny", "input": items, "tools": [{"type": "function", "name": "g"}]}
    answer = await ring.http.post(RESPONSES, json=ask)
    assert answer.status_code == 200 and "web_search" in answer.headers["x-headrace-warning"]
    request = ring.replica.requests[-1].request
    functions = [tool["function"] for tool in request.tools]
    assert [function["name"] for function in functions] == ["g", "f", "n__c"]
    assert functions[1]["description"] == "new" and [message.content for message in request.messages] == ["hi"]
    items[0]["tools"] = [{"type": "mcp"}]
    answer = await ring.http.post(RESPONSES, json=ask)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[0].tools[0].type")
    counted = await ring.http.post(f"{RESPONSES}/input_tokens", json={"model": "tiny", "input": [items[2], items[1]]})
    plain = await ring.http.post(f"{RESPONSES}/input_tokens", json={"model": "tiny", "input": [items[1]]})
    assert counted.json()["input_tokens"] > plain.json()["input_tokens"]


async def test_compaction_is_refused_and_says_what_to_do_instead(ring: Ring) -> None:
    async with ring.openai() as client:
        with pytest.raises(NotFoundError, match="summary in a message"):
            await client.responses.compact(model="tiny", input="hi")
    items = [{"role": "user", "content": "hi"}, {"type": "compaction_trigger"}]
    answer = await ring.http.post(RESPONSES, json={"model": "tiny", "input": items})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "input[1].type") and "summary" in error["message"]


async def test_each_part_of_a_message_is_text_or_refused_by_its_place(ring: Ring) -> None:
    for union, path, field in (
        (ResponseInputContentParam, RESPONSES, "input"),
        (ChatCompletionContentPartParam, CHAT, "messages"),
    ):
        theirs = kinds(union)
        assert theirs & PARTS and theirs - PARTS
        for kind in sorted(theirs - PARTS):
            messages = [{"role": "user", "content": [{"type": kind}]}]
            answer = await ring.http.post(path, json={"model": "tiny", field: messages})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"{field}[0].content[0]"), kind


async def test_each_block_of_anthropics_is_read_or_refused_by_its_place(ring: Ring) -> None:
    theirs = kinds(BetaContentBlockParam)
    assert theirs >= BLOCKS and len(theirs) > 15
    for kind in sorted(theirs - BLOCKS):
        for role in ("user", "assistant"):
            messages = [{"role": "user", "content": "hi"}, {"role": role, "content": [{"type": kind}]}]
            ask = {"model": "tiny", "max_tokens": 5, "messages": messages}
            answer = await ring.http.post("/v1/messages", json=ask)
            assert answer.status_code == 400 and "messages[1].content[0]" in answer.json()["error"]["message"], kind


async def test_what_would_mislead_is_refused_by_its_name(ring: Ring) -> None:
    said = {"role": "assistant", "content": None}
    for path, body, param in (
        (
            CHAT,
            {"messages": [{**said, "function_call": {"name": "f", "arguments": "{}"}}]},
            "messages[0].function_call",
        ),
        (CHAT, {"messages": [{**said, "audio": {"id": "a"}}]}, "messages[0].audio"),
        (RESPONSES, {"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
        (RESPONSES, {"prompt_cache_retention": "forever"}, "prompt_cache_retention"),
    ):
        base = ASK if path == CHAT else {"model": "tiny", "input": "hi"}
        answer = await ring.http.post(path, json={**base, **body})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    for name, value in (
        ("thread", {"type": "continue", "previous_message_id": "m"}),
        ("compaction", {"type": "summarize"}),
    ):
        answer = await ring.http.post("/v1/messages", json={**ASK, "max_tokens": 5, name: value})
        assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(name)


async def test_a_strict_tool_of_anthropics_is_held_to_its_schema(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    for strict in (True, False):
        tool = {"name": "add", "strict": strict, "input_schema": schema}
        ask = {**ASK, "max_tokens": 5, "tools": [tool]}
        assert (await ring.http.post("/v1/messages", json=ask)).status_code == 200
        assert (ring.replica.requests[-1].request.sampling.grammar is not None) is strict


async def test_answers_have_all_that_the_clients_types_demand(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say("hello"))
    everything = {"logprobs": True, "top_logprobs": 2, "service_tier": "auto"}
    whole = await ring.http.post(CHAT, json={**ASK, **everything})
    ChatCompletion.model_validate(whole.json(), strict=True)
    ask = {**ASK, **everything, "stream": True, "stream_options": {"include_usage": True}}
    for event in read((await ring.http.post(CHAT, json=ask)).text).events:
        if event.data != "[DONE]":
            ChatCompletionChunk.model_validate(event.json(), strict=True)
    ask = {**ASK, "max_tokens": 60, "thinking": {"type": "enabled", "budget_tokens": 40}}
    AnthropicMessage.model_validate((await ring.http.post("/v1/messages", json=ask)).json(), strict=True)
    judge: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    for event in read((await ring.http.post("/v1/messages", json={**ask, "stream": True})).text).events:
        if event.name != "ping":
            judge.validate_python(event.json(), strict=True)
    tools = [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}]
    answer = await ring.http.post(RESPONSES, json={"model": "tiny", "input": "hi", "tools": tools})
    Response.model_validate(answer.json(), strict=True)
    assert answer.json()["tools"][0] == {"type": "function", "name": "f", "parameters": None, "strict": False}
