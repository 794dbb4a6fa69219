"""Clients that people bring, unchanged: LangChain's ChatOpenAI, and the bodies that Open WebUI sends."""

from __future__ import annotations

import json
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import httpx
import pytest

from tests.gateway.edge.sse import read
from tests.ring import Ring
from tests.script import Piece, Script, say, tag, think
from wire.messages import Request

with warnings.catch_warnings():  # its own deprecations are no matter of ours
    warnings.simplefilter("ignore")
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI, OpenAI

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'
MULTIPLY = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "Multiply two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


Make = Callable[..., Any]


@pytest.fixture
async def langchain(ring: Ring) -> AsyncIterator[Make]:
    """A function that makes a model of LangChain; its own HTTP client would outlive the test."""
    async with httpx.AsyncClient(trust_env=False, timeout=60.0) as http:

        def make(kind: type[Any] = ChatOpenAI, **fields: Any) -> Any:
            base = {"model": "tiny", "base_url": f"{ring.url}/v1", "api_key": "none", "max_retries": 0}
            return kind(**base, http_async_client=http, **fields)

        yield make


def spelled(text: str) -> list[Piece]:
    return say(*text)


async def test_langchain_answers_whole_and_streamed_with_usage(ring: Ring, langchain: Make) -> None:
    ring.replica.play(*say("hello", " world"))
    model = langchain(temperature=0.5, stop=["zz"], seed=3, max_tokens=50)
    answer = await model.ainvoke([("system", "be brief"), ("user", "hi")])
    assert answer.content == "hello world"
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] == 3
    sampling = ring.replica.requests[-1].request.sampling
    assert (sampling.temperature, sampling.seed, sampling.stop, sampling.max_tokens) == (0.5, 3, ("zz",), 50)
    pieces = [piece async for piece in langchain(stream_usage=True).astream("hi")]
    assert "".join(str(piece.content) for piece in pieces) == "hello world"
    assert sum(piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata) == 3


async def test_langchain_calls_a_tool_and_goes_on_with_its_result(ring: Ring, langchain: Make) -> None:
    def script(request: Request) -> Script:
        return Script(spelled("42") if request.messages[-1].role == "tool" else spelled(CALL))

    ring.replica.script = script
    model = langchain().bind_tools([MULTIPLY])
    asked = HumanMessage("6 times 7?")
    called = await model.ainvoke([asked])
    assert isinstance(called, AIMessage)
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("multiply", {"a": 6, "b": 7})
    done = await model.ainvoke([asked, called, ToolMessage("42", tool_call_id=call["id"])])
    assert done.content == "42"
    streamed = None
    async for piece in model.astream([asked]):
        streamed = piece if streamed is None else streamed + piece
    assert streamed is not None and streamed.tool_calls[0]["args"] == {"a": 6, "b": 7}


@pytest.mark.parametrize(
    "fields", [{}, {"use_previous_response_id": True}, {"output_version": "responses/v1"}], ids=str
)
async def test_langchain_calls_a_tool_through_responses_too(ring: Ring, langchain: Make, fields: Any) -> None:
    def script(request: Request) -> Script:
        thoughts = [*tag("<think>"), *think("hidden "), *tag("</think>")]
        return Script([*thoughts, *spelled("42" if request.messages[-1].role == "tool" else CALL)])

    ring.replica.script = script
    model = langchain(use_responses_api=True, **fields).bind_tools([MULTIPLY])
    asked = HumanMessage("6 times 7?")
    streamed = None
    async for piece in model.astream([asked]):
        streamed = piece if streamed is None else streamed + piece
    assert streamed is not None
    for called in (await model.ainvoke([asked]), streamed):
        (call,) = called.tool_calls
        assert call["args"] == {"a": 6, "b": 7}
        done = await model.ainvoke([asked, called, ToolMessage("42", tool_call_id=call["id"])])
        assert done.text == "42"
        sent = [message.role for message in ring.replica.requests[-1].request.messages]
        assert sent == (["tool"] if fields.get("use_previous_response_id") else ["user", "assistant", "tool"])


@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
async def test_langchain_gets_structured_output_by_each_of_its_ways(ring: Ring, langchain: Make, method: Any) -> None:
    schema = {"title": "multiply", "description": "Two numbers.", **cast(Any, MULTIPLY)["function"]["parameters"]}
    said = CALL if method == "function_calling" else '{"a": 6, "b": 7}'
    ring.replica.play(*spelled(said))
    model = langchain().with_structured_output(schema, method=method)
    assert await model.ainvoke("6 and 7 as JSON") == {"a": 6, "b": 7}
    assert ring.replica.requests[-1].request.sampling.grammar is not None


async def test_langchains_completions_take_several_prompts(ring: Ring, langchain: Make) -> None:
    ring.replica.play(*say("hello"))
    model = langchain(OpenAI)
    answer = await model.agenerate(["ab", "cd"])
    assert [one[0].text for one in answer.generations] == ["hello", "hello"]


# What Open WebUI sends to an OpenAI connection: `params` of a model are spread over the body, what is unset is left out
# or null; background tasks (titles, tags, follow-ups) ask whole, with `max_completion_tokens`.
OPEN_WEBUI: list[dict[str, Any]] = [
    {
        "stream": True,
        "model": "tiny",
        "messages": [{"role": "system", "content": "rules"}, {"role": "user", "content": "hi"}],
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0,
        "seed": 7,
        "stop": ["zz"],
        "max_tokens": 128,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "repeat_penalty": 1,
        "mirostat": 0,
        "tfs_z": 1,
        "logit_bias": {"5": -100},
        "reasoning_effort": "low",
        "stream_options": {"include_usage": True},
    },
    {
        "stream": True,
        "model": "tiny",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": "<details>\nthoughts\n</details>\nhello"},
            {"role": "user", "content": "go on"},
        ],
        "tools": [MULTIPLY],
        "user": "u-1",
    },
    {
        "stream": False,
        "model": "tiny",
        "messages": [{"role": "user", "content": "### Task:\nGenerate a concise title"}],
        "max_completion_tokens": 1000,
    },
    {
        "stream": False,
        "model": "tiny",
        "messages": [{"role": "user", "content": "tags"}],
        "max_tokens": 50,
        "stop": None,
    },
]


async def test_open_webuis_bodies_are_answered(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say("hello", " world"))
    listed = (await ring.http.get("/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == ["tiny"]
    for body in OPEN_WEBUI:
        response = await ring.http.post(
            "/v1/chat/completions",
            content=json.dumps(body),
            headers={"Authorization": "Bearer none", "X-OpenWebUI-User-Name": "me", "Content-Type": "application/json"},
        )
        assert response.status_code == 200, response.text
        if body["stream"]:
            assert read(response.text).text() == "hello world"
        else:
            assert response.json()["choices"][0]["message"]["content"] == "hello world"
