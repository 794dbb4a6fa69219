"""The Responses API: events in order, stored turns, conversations that go on to the token."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.gateway.edge.asks import RESPONSES, lines_until, opened, refused, whole
from tests.gateway.edge.sse import Stream, read
from tests.ring import MakeRing, Ring
from tests.script import Piece, Script, say, tag, think
from wire.errors import ContextLengthExceededError, InternalError
from wire.messages import unpack_ids

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"model": "tiny", "input": "hi"}


async def respond(ring: Ring, **fields: Any) -> dict[str, Any]:
    response = await ring.http.post(RESPONSES, json={**ASK, **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def respond_streamed(ring: Ring, **fields: Any) -> Stream:
    response = await ring.http.post(RESPONSES, json={**ASK, "stream": True, **fields})
    assert response.status_code == 200, response.text
    return read(response.text)


def text_of(response: dict[str, Any], kind: str = "message") -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == kind for part in item["content"])


def prompt_of(ring: Ring) -> list[int]:
    prompt = ring.replica.requests[-1].prompt
    assert prompt is not None
    return unpack_ids(prompt.token_ids)


async def get(ring: Ring, path: str, status: int = 200) -> dict[str, Any]:
    response = await ring.http.get(path)
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.json()
    return body


async def test_a_conversation_goes_on_without_input(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    items = [{"role": "user", "content": "question"}]
    conversation = (await ring.http.post("/v1/conversations", json={"items": items})).json()["id"]
    ways: list[dict[str, Any]] = [{}, {"input": None}, {"input": []}]
    for given in ways:
        ask = {"model": "tiny", "conversation": conversation, **given}
        response = await ring.http.post(RESPONSES, json=ask)
        assert response.status_code == 200, response.text
    listed = (await get(ring, f"/v1/conversations/{conversation}/items?order=asc"))["data"]
    assert [item["content"][0]["text"] for item in listed] == ["question", "hello", "hello", "hello"]
    last = response.json()["id"]
    assert (await get(ring, f"{RESPONSES}/{last}/input_items"))["data"] == []
    again = await ring.http.post(RESPONSES, json={"model": "tiny", "previous_response_id": last})
    assert again.status_code == 200, again.text
    empty = (await ring.http.post("/v1/conversations", json={})).json()["id"]
    await refused(ring, "input", RESPONSES, input=None, conversation=empty)
    await refused(ring, "input", RESPONSES, input=None)


async def test_input_holds_as_many_messages_as_a_chat(ring: Ring) -> None:
    many = [{"role": "user", "content": ""}] * 4_097
    await refused(ring, "input", RESPONSES, input=many)
    await refused(ring, "messages", messages=many)


async def test_the_events_of_a_stream_come_in_openais_order_and_are_numbered(ring: Ring) -> None:
    ring.replica.play(*say("hello", " world"))
    stream = await respond_streamed(ring)
    assert [event.name for event in stream.events] == [event.json()["type"] for event in stream.events]
    kinds = [event.name.removeprefix("response.") for event in stream.events]
    assert [kind for kind in kinds if kind != "output_text.delta"] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event.json()["sequence_number"] for event in stream.events] == list(range(len(stream.events)))
    deltas = "".join(e.json()["delta"] for e in stream.events if e.name == "response.output_text.delta")
    response = stream.events[-1].json()["response"]
    assert deltas == text_of(response) == "hello world"
    assert response["status"] == "completed"


async def test_reasoning_and_answer_are_items_of_their_own(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden ", "thought"), *tag("</think>"), *say("the answer"))
    stream = await respond_streamed(ring, reasoning={"effort": "low"})
    response = stream.events[-1].json()["response"]
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert text_of(response, "reasoning") == "hidden thought"
    assert text_of(response) == "the answer"
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 2
    assert response["reasoning"]["effort"] == "low"
    assert ring.replica.requests[-1].request.effort == "low"
    again = await respond(ring)
    assert [item["type"] for item in again["output"]] == ["reasoning", "message"]


async def test_a_whole_response_equals_the_last_event_of_the_streamed_one(ring: Ring) -> None:
    ring.replica.play(*say("hello", " world"))
    answer = await respond(ring, instructions="be brief", metadata={"a": "b"}, temperature=0.5)
    stream = await respond_streamed(ring, instructions="be brief", metadata={"a": "b"}, temperature=0.5)
    last = stream.events[-1].json()["response"]
    assert set(answer) == set(last)
    for name in ("instructions", "metadata", "temperature", "top_p", "status", "model", "tools", "text", "store"):
        assert answer[name] == last[name]
    assert answer["usage"]["input_tokens"] == last["usage"]["input_tokens"]


async def test_a_response_cut_by_its_limit_is_incomplete(ring: Ring) -> None:
    ring.replica.play(*say("one ", "two ", "three "))
    stream = await respond_streamed(ring, max_output_tokens=2)
    assert stream.events[-1].name == "response.incomplete"
    response = stream.events[-1].json()["response"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert text_of(response) == "one two "
    assert response["output"][0]["status"] == "incomplete"
    assert (await respond(ring, max_output_tokens=2))["status"] == "incomplete"


async def test_a_fault_after_the_first_token_ends_with_response_failed_and_is_stored_as_that(ring: Ring) -> None:
    ring.replica.script = Script(say("one "), error=InternalError("the engine failed"))
    stream = await respond_streamed(ring)
    assert stream.events[-1].name == "response.failed"
    response = stream.events[-1].json()["response"]
    assert response["status"] == "failed"
    assert response["error"]["code"] == "server_error"
    assert (await get(ring, f"/v1/responses/{response['id']}"))["status"] == "failed"


async def test_a_response_that_ended_as_an_http_error_leaves_no_turn_behind(ring: Ring) -> None:
    conversation = (await ring.http.post("/v1/conversations", json={})).json()["id"]
    ring.replica.script = Script(say("one "), error=InternalError("the engine failed"))
    answer = await ring.http.post(RESPONSES, json={**ASK, "conversation": conversation})
    assert answer.status_code == 500
    ring.replica.play(*say("two "))
    await respond(ring, conversation=conversation)
    items = await get(ring, f"/v1/conversations/{conversation}/items?order=asc")
    assert [item["role"] for item in items["data"]] == ["user", "assistant"]


async def test_a_fault_before_the_first_token_is_a_status(ring: Ring) -> None:
    ring.replica.script = Script(error=ContextLengthExceededError("too long"))
    error = await refused(ring, None, path=RESPONSES)
    assert error["code"] == "context_length_exceeded"


async def test_a_stored_response_is_there_as_soon_as_its_last_event(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    async with opened(ring, RESPONSES) as response:
        lines = await lines_until(response, '"type":"response.completed"')
    stream = read("\n".join(lines) + "\n\n")
    answered = stream.events[-1].json()["response"]
    stored = await get(ring, f"/v1/responses/{answered['id']}")
    assert {**stored, "usage": None} == {**answered, "usage": None}
    items = await get(ring, f"/v1/responses/{answered['id']}/input_items")
    assert [item["content"][0]["text"] for item in items["data"]] == ["hi"]


async def test_a_response_that_is_not_to_be_stored_is_not_found(ring: Ring) -> None:
    answer = await respond(ring, store=False)
    await get(ring, f"/v1/responses/{answer['id']}", status=404)
    error = await refused(ring, "previous_response_id", RESPONSES, 404, previous_response_id=answer["id"])
    assert error["code"] == "not_found"


async def test_a_deleted_response_is_gone(ring: Ring) -> None:
    answer = await respond(ring)
    deleted = await ring.http.delete(f"/v1/responses/{answer['id']}")
    assert deleted.json() == {"id": answer["id"], "object": "response", "deleted": True}
    await get(ring, f"/v1/responses/{answer['id']}", status=404)


async def test_the_next_turn_continues_the_prompt_and_the_answer_to_the_token(ring: Ring) -> None:
    ring.replica.play(*say("hello", " world"))
    first = await respond(ring)
    before = prompt_of(ring)
    second = await respond(ring, input="more", previous_response_id=first["id"])
    after = prompt_of(ring)
    answer = [ring.replica.token_id(b"hello"), ring.replica.token_id(b" world"), ring.replica.end_token]
    assert after[: len(before) + 3] == before + answer, "no encoder makes these pieces: they are the stored ids"
    assert second["previous_response_id"] == first["id"]
    third = await respond(ring, input="again", previous_response_id=second["id"])
    assert prompt_of(ring)[: len(after)] == after
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]


async def test_instructions_hold_for_their_turn_only(ring: Ring) -> None:
    first = await respond(ring, instructions="SECRET")
    assert b"SECRET" in ring.replica.vocabulary.decode_bytes(prompt_of(ring))
    await respond(ring, previous_response_id=first["id"])
    assert b"SECRET" not in ring.replica.vocabulary.decode_bytes(prompt_of(ring))


@pytest.mark.parametrize("as_object", [False, True])
async def test_turns_of_a_conversation_follow_one_another(ring: Ring, as_object: bool) -> None:
    conversation = (await ring.http.post("/v1/conversations", json={"metadata": {"title": "t"}})).json()
    given = {"id": conversation["id"]} if as_object else conversation["id"]
    ring.replica.play(*say("hello"))
    answer = await respond(ring, conversation=given)
    assert answer["conversation"] == {"id": conversation["id"]}
    await respond(ring, input="more", conversation=given)
    prompt = ring.replica.vocabulary.decode_bytes(prompt_of(ring))
    assert prompt.index(b"hi") < prompt.index(b"hello") < prompt.index(b"more")
    items = await get(ring, f"/v1/conversations/{conversation['id']}/items?order=asc")
    assert [item["role"] for item in items["data"]] == ["user", "assistant", "user", "assistant"]


async def test_a_turn_cut_by_a_stop_string_goes_on_with_the_text_that_was_shown(ring: Ring) -> None:
    ring.replica.play(*say("x", "EN", "D-", "OF", "!"))
    first = await respond(ring, stop=["END-OF"])
    assert text_of(first) == "x"
    await respond(ring, input="more", previous_response_id=first["id"])
    assert b"END-OF" not in ring.replica.vocabulary.decode_bytes(prompt_of(ring))


async def test_a_client_that_leaves_keeps_what_was_said_marked_incomplete(ring: Ring) -> None:
    conversation = (await ring.http.post("/v1/conversations", json={})).json()["id"]
    ring.replica.play(*say("one ", "two "), finish=None)
    async with opened(ring, RESPONSES, conversation=conversation) as response:
        lines = await lines_until(response, 'two "')
    await ring.replica.cancelled()
    await ring.until_idle()
    created = read("\n".join(lines[:3]) + "\n").events[0].json()["response"]["id"]
    stored = await get(ring, f"/v1/responses/{created}")
    assert (stored["status"], text_of(stored)) == ("incomplete", "one two ")
    items = await get(ring, f"/v1/conversations/{conversation}/items?order=asc")
    assert [item["status"] for item in items["data"]] == ["completed", "incomplete"]


async def test_a_client_that_leaves_between_the_last_token_and_the_end_keeps_its_turn(ring: Ring) -> None:
    conversation = (await ring.http.post("/v1/conversations", json={})).json()["id"]
    ring.replica.play(*say("one "))
    async with opened(ring, RESPONSES, conversation=conversation) as response:
        await lines_until(response, 'one "')
    await ring.until_idle()
    with anyio.fail_after(60):
        while len((await get(ring, f"/v1/conversations/{conversation}/items"))["data"]) < 2:
            await anyio.sleep(0.01)


async def test_log_probabilities_come_when_included(ring: Ring) -> None:
    ring.replica.play(*say("one "))
    answer = await respond(ring, include=["message.output_text.logprobs"], top_logprobs=2)
    (entry,) = answer["output"][0]["content"][0]["logprobs"]
    assert entry["token"] == "one " and len(entry["top_logprobs"]) == 2


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("input", {"input": []}),
    ("input", {"input": 3}),
    ("input[0].role", {"input": [{"role": "boss", "content": "x"}]}),
    ("input[0].content", {"input": [{"role": "user"}]}),
    ("input[0].content[0]", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
    ("input[0].type", {"input": [{"type": "computer_call", "id": "x"}]}),
    ("input[0].id", {"input": [{"type": "item_reference"}]}),
    ("input[0].output", {"input": [{"type": "function_call_output", "call_id": "c"}]}),
    ("input[0].call_id", {"input": [{"type": "function_call_output", "output": "x"}]}),
    ("previous_response_id", {"previous_response_id": "resp_1", "conversation": "conv_1"}),
    ("conversation", {"conversation": ""}),
    ("max_output_tokens", {"max_output_tokens": 0}),
    ("reasoning.effort", {"reasoning": {"effort": "huge"}}),
    ("reasoning.max_tokens", {"reasoning": {"max_tokens": -1}}),
    ("background", {"background": True, "store": False}),
    ("reasoning.summary", {"reasoning": {"summary": "long"}}),
    ("include[0]", {"include": ["everything"]}),
    ("service_tier", {"service_tier": "gold"}),
    ("max_tool_calls", {"max_tool_calls": 0}),
    ("safety_identifier", {"safety_identifier": "x" * 129}),
    ("context_management", {"context_management": [{"type": "compaction"}]}),
    ("moderation", {"moderation": {"model": "x"}}),
    ("stream_options.include_obfuscation", {"stream_options": {"include_obfuscation": "no"}}),
    ("prompt", {"prompt": {"id": "p"}}),
    ("metadata", {"metadata": {str(at): "x" for at in range(17)}}),
    ("truncation", {"truncation": "middle"}),
]


async def test_wrong_values_are_refused_by_name(ring: Ring) -> None:
    for param, fields in WRONG:
        await refused(ring, param, RESPONSES, **fields)


@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
async def test_what_does_not_exist_cannot_be_continued(ring: Ring, field: str) -> None:
    for name in ("resp_0123456789abcdef0123456789abcdef0123456789", "nonsense", "x" * 5000):
        await refused(ring, field, RESPONSES, 404, **{field: name})
    assert ring.replica.requests == []


async def test_items_of_earlier_calls_and_reasoning_may_be_sent_by_the_client(ring: Ring) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hmm"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "sunny"}]},
        {"role": "user", "content": "thanks"},
    ]
    await respond(ring, input=items)
    messages = ring.replica.requests[-1].request.messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert (messages[1].reasoning, messages[1].tool_calls[0].name) == ("hmm", "f")


async def test_responses_and_their_conversations_work_over_several_partitions(make_ring: MakeRing) -> None:
    async with make_ring(partitions=3) as ring:
        ring.replica.play(*say("hello"))
        used = set()
        for _ in range(6):
            first = await respond(ring)
            second = await respond(ring, previous_response_id=first["id"])
            used.add(ring.replica.requests[-1].job.partition)
            assert (await get(ring, f"/v1/responses/{second['id']}"))["status"] == "completed"
            conversation = (await ring.http.post("/v1/conversations", json={})).json()["id"]
            await respond(ring, conversation=conversation)
        assert len(used) > 1
        listed: list[str] = []
        page: dict[str, Any] = {"has_more": True, "last_id": None}
        while page["has_more"]:
            after = f"&after={page['last_id']}" if page["last_id"] else ""
            page = await get(ring, f"/v1/conversations?limit=2{after}")
            listed += [item["id"] for item in page["data"]]
        assert len(listed) == len(set(listed)) == 6


async def test_chat_completions_are_not_stored(ring: Ring) -> None:
    await whole(ring, store=True)
    assert (await get(ring, "/v1/conversations"))["data"] == []


async def test_keep_alive_does_not_disturb_response_events(make_ring: MakeRing) -> None:
    async with make_ring(keep_alive_s=0.05) as ring:
        go = anyio.Event()
        ring.replica.play(Piece(b"one ", after=go))
        async with opened(ring, RESPONSES) as response:
            got = ""
            async for part in response.aiter_text():
                got += part
                if ": keep-alive" in got:
                    go.set()
        assert read(got).events[-1].name == "response.completed"
