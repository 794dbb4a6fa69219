"""What the Responses API says has OpenAI's shape: their own models judge every event and every object, strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.gateway.edge.asks import RESPONSES, refused
from tests.gateway.edge.sse import Stream, read
from tests.ring import MakeRing, Ring
from tests.script import Script, say, tag, think
from wire.errors import ContextLengthExceededError, InternalError, OverloadedError

pytestmark = pytest.mark.anyio

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ASK: dict[str, Any] = {"model": "tiny", "input": "hi"}
EVERYTHING: dict[str, Any] = {
    "instructions": "be brief",
    "max_output_tokens": 50,
    "max_tool_calls": 3,
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
    "prompt_cache_key": "k",
    "reasoning": {"effort": "low", "summary": "auto"},
    "safety_identifier": "s",
    "service_tier": "auto",
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "top_logprobs": 2,
    "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
    "truncation": "disabled",
    "user": "u",
    "temperature": 0.5,
    "top_p": 0.9,
}


async def streamed(ring: Ring, **fields: Any) -> Stream:
    """Ask for a stream; every event and the response in it are judged."""
    answer = await ring.http.post(RESPONSES, json={**ASK, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    stream = read(answer.text)
    for number, event in enumerate(stream.events):
        data = event.json()
        EVENT.validate_python(data, strict=True)
        assert (data["type"], data["sequence_number"]) == (event.name, number)
    return stream


async def whole(ring: Ring, **fields: Any) -> dict[str, Any]:
    answer = await ring.http.post(RESPONSES, json={**ASK, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    Response.model_validate(body, strict=True)
    return body


def built(stream: Stream) -> list[dict[str, Any]]:
    """Put the output together from the events alone, as a client does."""
    items: list[dict[str, Any]] = []
    for event in stream.events:
        data = event.json()
        match event.name.removeprefix("response."):
            case "output_item.added":
                assert data["output_index"] == len(items)
                items.append(data["item"])
            case "content_part.added" | "reasoning_summary_part.added":
                name, index = ("summary", "summary_index") if "summary_index" in data else ("content", "content_index")
                parts = items[data["output_index"]][name]
                assert data[index] == len(parts)
                parts.append(dict(data["part"]))
            case "output_text.delta" | "reasoning_text.delta" as kind:
                part = items[data["output_index"]]["content"][data["content_index"]]
                part["text"] += data["delta"]
                if kind == "output_text.delta":
                    part["logprobs"] = part["logprobs"] + data["logprobs"]
            case "refusal.delta":
                items[data["output_index"]]["content"][data["content_index"]]["refusal"] += data["delta"]
            case "reasoning_summary_text.delta":
                items[data["output_index"]]["summary"][data["summary_index"]]["text"] += data["delta"]
            case "output_item.done":
                assert data["item"] == items[data["output_index"]] | {"status": data["item"]["status"]}
                items[data["output_index"]] = data["item"]
    return items


async def test_the_events_build_up_exactly_the_output_of_the_last_one(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden ", "thought"), *tag("</think>"), *say("hello", " world"))
    for fields in ({}, EVERYTHING, {"max_output_tokens": 2}, {"max_output_tokens": 4}):
        stream = await streamed(ring, **fields)
        assert built(stream) == stream.events[-1].json()["response"]["output"]


async def test_a_response_repeats_what_was_asked_for(ring: Ring) -> None:
    body = await whole(ring, **EVERYTHING)
    for name in set(EVERYTHING) - {"include", "service_tier"}:
        assert body[name] == EVERYTHING[name], name
    assert body["service_tier"] == "default"
    plain = await whole(ring)
    assert plain["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert plain["reasoning"] == {"effort": None, "summary": None}


async def test_thoughts_come_as_a_summary_if_one_is_asked_for(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden ", "thought"), *tag("</think>"), *say("hello"))
    stream = await streamed(ring, reasoning={"summary": "detailed"})
    reasoning, message = stream.events[-1].json()["response"]["output"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "hidden thought"}]
    assert reasoning["content"] == []
    names = [event.name for event in stream.events]
    assert "response.reasoning_summary_text.delta" in names and "response.reasoning_text.delta" not in names
    stored = (await ring.http.get(f"{RESPONSES}/{stream.events[-1].json()['response']['id']}")).json()
    assert stored["output"] == [reasoning, message]


async def test_what_a_safety_rule_cuts_off_ends_in_a_refusal(make_ring: MakeRing, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rule]]\nid = "word"\nkind = "terms"\nterms = ["zorgblat"]\naction = "block"\n')
    async with make_ring(safety_policy=str(policy)) as ring:
        ring.replica.play(*say("one ", "zorg", "blat", "two "), finish=None)
        stream = await streamed(ring)
        assert built(stream) == stream.events[-1].json()["response"]["output"]
        assert stream.events[-1].name == "response.incomplete"
        response = stream.events[-1].json()["response"]
        assert response["incomplete_details"] == {"reason": "content_filter"}
        text, refusal = response["output"][0]["content"]
        assert (text["text"], refusal["type"]) == ("one ", "refusal")
        assert {"response.refusal.delta", "response.refusal.done"} <= {event.name for event in stream.events}
        body = await whole(ring)
        assert body["output"][0]["content"] == response["output"][0]["content"]
        stored = (await ring.http.get(f"{RESPONSES}/{body['id']}")).json()
        assert stored["output"] == body["output"]


async def test_a_fault_in_mid_stream_closes_what_was_open_and_has_openais_code(ring: Ring) -> None:
    for error, code in (
        (InternalError("x"), "server_error"),
        (OverloadedError("x"), "rate_limit_exceeded"),
        (ContextLengthExceededError("x"), "invalid_prompt"),
    ):
        ring.replica.script = Script(say("one "), error=error)
        stream = await streamed(ring)
        response = stream.events[-1].json()["response"]
        assert response["error"] == {"code": code, "message": "x", "headrace": {"code": error.code}}
        assert built(stream) == response["output"]
        assert response["output"][0]["status"] == "incomplete"


async def test_the_items_of_a_response_and_of_its_input_have_openais_shape(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say("hello"))
    items = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
    ]
    body = await whole(ring, input=items)
    listed = (await ring.http.get(f"{RESPONSES}/{body['id']}/input_items", params={"order": "asc"})).json()
    ResponseItemList.model_validate(listed, strict=True)
    assert [item["type"] for item in listed["data"]] == ["message", "message", "function_call", "function_call_output"]


async def test_an_item_may_be_named_instead_of_repeated(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say("hello"))
    body = await whole(ring)
    reasoning, message = body["output"]
    first = (await ring.http.get(f"{RESPONSES}/{body['id']}/input_items")).json()["data"][0]
    named = [{"type": "item_reference", "id": item["id"]} for item in (first, reasoning)]
    await whole(ring, input=[*named, {"id": message["id"]}, {"role": "user", "content": "more"}])
    said = ring.replica.requests[-1].request.messages
    assert [(m.role, m.content, m.reasoning) for m in said] == [
        ("user", "hi", ""),
        ("assistant", "hello", "hidden "),
        ("user", "more", ""),
    ]
    gone = message["id"][:-4] + "0000"
    error = await refused(ring, "input[1].id", RESPONSES, 404, input=[named[0], {"type": "item_reference", "id": gone}])
    assert error["code"] == "not_found"


async def test_calls_in_a_row_are_one_message_of_the_assistant(ring: Ring) -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    items = [
        {"role": "user", "content": "both"},
        {"role": "assistant", "content": "I look."},
        {**call, "call_id": "c1"},
        {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
    ]
    await whole(ring, input=items)
    said = ring.replica.requests[-1].request.messages
    assert [message.role for message in said] == ["user", "assistant", "tool", "tool"]
    assert (said[1].content, [one.id for one in said[1].tool_calls]) == ("I look.", ["c1", "c2"])


async def test_the_clients_of_both_kinds_read_it(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say("hello", " world"))

    def ask() -> tuple[str, str, list[str]]:
        with OpenAI(base_url=f"{ring.url}/v1", api_key="none", max_retries=0) as client:
            answer = client.responses.create(model="tiny", input="hi", reasoning={"summary": "auto"})
            with client.responses.stream(model="tiny", input="more", previous_response_id=answer.id) as stream:
                kinds: list[str] = [event.type for event in stream]
            return answer.output_text, client.responses.retrieve(answer.id).output_text, kinds

    whole_text, stored_text, kinds = await anyio.to_thread.run_sync(ask)
    assert whole_text == stored_text == "hello world"
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    async with AsyncOpenAI(base_url=f"{ring.url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.responses.create(model="tiny", input="hi", stream=True)
        assert [event.type async for event in stream][-1] == "response.completed"
