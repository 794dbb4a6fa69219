"""Custom tools, which are called with free text, and namespaces: read by OpenAI's own client, in both its APIs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.conversations import ConversationItem
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.edge.schema.response_fold import fold
from tests.gateway.edge.asks import CHAT, RESPONSES, refused, still_serves
from tests.gateway.edge.sse import read
from tests.gateway.edge.test_grammar import BAD_LARK
from tests.gateway.edge.test_tools import letters, prompt_text
from tests.ring import MakeRing, Ring
from tests.script import say

pytestmark = pytest.mark.anyio

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)
TEXT = '*** Begin "Patch"\n+a\\b\té😀\n'
ARGUMENTS = json.dumps({"input": TEXT})
CALL = f'<tool_call>\n{{"name": "patch", "arguments": {ARGUMENTS}}}\n</tool_call>'
GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": r"(?s)\*\*\* Begin.*"}
PATCH: dict[str, Any] = {"type": "custom", "name": "patch", "description": "Changes files.", "format": GRAMMAR}
IN_CHAT: dict[str, Any] = {
    "type": "custom",
    "custom": {
        "name": "patch",
        "description": "Changes files.",
        "format": {
            "type": "grammar",
            "grammar": {"syntax": "regex", "definition": GRAMMAR["definition"]},
        },
    },
}
SPACE: dict[str, Any] = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [
        {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}},
        {"type": "custom", "name": "note"},
    ],
}
FIND = '<tool_call>\n{"name": "crm__find", "arguments": {}}\n</tool_call>'
NOTE = '<tool_call>\n{"name": "crm__note", "arguments": {"input": "call back"}}\n</tool_call>'


async def test_a_custom_call_of_a_response_is_free_text_whole_and_streamed(ring: Ring) -> None:
    ring.replica.play(*letters(f"I patch.\n{CALL}"))
    async with ring.openai() as client:
        answer = await client.responses.create(model="tiny", input="hi", tools=[PATCH])
        Response.model_validate(answer.to_dict(), strict=True)
        item = answer.output[-1]
        assert item.type == "custom_tool_call" and item.id.startswith("ctc_")
        assert (item.name, item.input) == ("patch", TEXT)
        deltas, last = [], None
        async with client.responses.stream(model="tiny", input="hi", tools=[PATCH]) as stream:
            async for event in stream:
                if event.type == "response.custom_tool_call_input.delta":
                    deltas.append(event.delta)
                elif event.type == "response.custom_tool_call_input.done":
                    assert event.input == TEXT and last is None
                    last = event.item_id
            final = await stream.get_final_response()
    assert len(deltas) > 10 and "".join(deltas) == TEXT
    assert (final.output[-1].id, final.output[-1].input) == (last, TEXT)


async def test_every_event_of_a_custom_call_has_openais_shape(ring: Ring) -> None:
    ring.replica.play(*letters(CALL))
    answer = await ring.http.post(
        RESPONSES, json={"model": "tiny", "input": "hi", "stream": True, "tools": [PATCH, SPACE]}
    )
    events = [event.json() for event in read(answer.text).events]
    for event in events:
        EVENT.validate_python(event, strict=True)
    added = next(event["item"] for event in events if event["type"] == "response.output_item.added")
    assert (added["type"], added["input"], added["status"]) == ("custom_tool_call", "", "in_progress")
    assert events[-1]["response"]["tools"] == [PATCH, SPACE]
    blocks = [block.encode() for block in answer.text.split("\n\n") if block.startswith("event: ")]
    done = next(at for at, event in enumerate(events) if event["type"] == "response.custom_tool_call_input.done")
    assert fold(blocks[:done])[0]["input"] == TEXT, "what is shown of a response that is still being made"


async def test_a_custom_call_in_chat_is_free_text_whole_and_streamed(ring: Ring) -> None:
    ring.replica.play(*letters(CALL))
    ask: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "tools": [IN_CHAT]}
    async with ring.openai() as client:
        answer = await client.chat.completions.create(**ask)
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls"
        call = (choice.message.tool_calls or [])[0]
        assert call.type == "custom" and (call.custom.name, call.custom.input) == ("patch", TEXT)
        pieces = [
            one.to_dict()
            async for chunk in await client.chat.completions.create(**ask, stream=True)
            for part in chunk.choices
            for one in part.delta.tool_calls or ()
        ]
    first = pieces[0]
    assert (first["type"], first["custom"]) == ("custom", {"name": "patch", "input": ""}) and first["id"]
    assert all(set(piece) == {"index", "custom"} and set(piece["custom"]) == {"input"} for piece in pieces[1:])
    assert "".join(piece["custom"]["input"] for piece in pieces) == TEXT


async def test_the_model_sees_a_function_with_one_text_and_what_the_text_must_be(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    for path, ask in (
        (RESPONSES, {"input": "hi", "tools": [PATCH]}),
        (CHAT, {"messages": [{"role": "user", "content": "hi"}], "tools": [IN_CHAT]}),
    ):
        assert (await ring.http.post(path, json={"model": "tiny", **ask})).status_code == 200
        shown = json.loads(prompt_text(ring).split("<tools>\n")[1].split("\n</tools>")[0])
        assert shown["function"]["name"] == "patch" and shown["function"]["description"] == "Changes files."
        assert list(shown["function"]["parameters"]["properties"]) == ["input"]
        assert GRAMMAR["definition"] in shown["function"]["parameters"]["properties"]["input"]["description"]


async def test_a_custom_call_and_its_result_go_back_into_the_prompt(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    written = json.dumps({"input": TEXT}, ensure_ascii=False)
    items = [
        {"role": "user", "content": "hi"},
        {
            "type": "custom_tool_call",
            "call_id": "c1",
            "name": "patch",
            "input": TEXT,
            "id": "ctc_1",
            "status": "completed",
        },
        {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "done"}]},
    ]
    async with ring.openai() as client:
        await client.responses.create(model="tiny", input=items, tools=[PATCH], store=False)
        from_items = prompt_text(ring)
        messages: list[Any] = [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c1", "type": "custom", "custom": {"name": "patch", "input": TEXT}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
        ]
        await client.chat.completions.create(model="tiny", messages=messages, tools=[IN_CHAT])
    assert prompt_text(ring) == from_items
    assert f'<tool_call>\n{{"name": "patch", "arguments": {written}}}\n</tool_call>' in from_items
    assert "<tool_response>\ndone\n</tool_response>" in from_items


async def test_a_stored_custom_call_is_listed_referred_to_continued_and_deleted_as_what_it_was(ring: Ring) -> None:
    ring.replica.play(*letters(CALL))
    async with ring.openai() as client:
        conversation = (await client.conversations.create()).id
        first = await client.responses.create(model="tiny", input="hi", tools=[PATCH], conversation=conversation)
        call = first.output[0]
        ring.replica.play(*say("hello"))
        result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}
        await client.responses.create(model="tiny", input=[result], tools=[PATCH], conversation=conversation)
        assert "<tool_response>\ndone" in prompt_text(ring) and "patch" in prompt_text(ring)
        items = [item async for item in client.conversations.items.list(conversation, order="asc")]
        for item in items:
            ITEM.validate_python(item.to_dict(), strict=True)
        kinds = [item.type for item in items]
        assert kinds == ["message", "custom_tool_call", "custom_tool_call_output", "message"]
        assert (items[1].id, items[1].input, items[2].output) == (call.id, TEXT, "done")
        again = [{"role": "user", "content": "x"}, {"type": "item_reference", "id": call.id}]
        referring = await client.responses.create(model="tiny", input=again, tools=[PATCH])
        entered = await client.responses.input_items.list(referring.id, order="asc")
        assert [item.type for item in entered.data] == ["message", "custom_tool_call"]
        assert entered.data[1].input == TEXT
        await client.conversations.items.delete(call.id, conversation_id=conversation)
        left = [item.type async for item in client.conversations.items.list(conversation, order="asc")]
        assert left == ["message", "custom_tool_call_output", "message"]


async def test_deleting_one_of_an_answers_items_leaves_its_custom_call(ring: Ring) -> None:
    ring.replica.play(*letters(f"I patch.\n{CALL}"))
    async with ring.openai() as client:
        conversation = (await client.conversations.create()).id
        answer = await client.responses.create(model="tiny", input="hi", tools=[PATCH], conversation=conversation)
        await client.conversations.items.delete(answer.output[0].id, conversation_id=conversation)
        items = [item async for item in client.conversations.items.list(conversation, order="asc")]
        assert [item.type for item in items] == ["message", "custom_tool_call"] and items[1].input == TEXT
        ring.replica.play(*say("hello"))
        await client.responses.create(model="tiny", input="on", tools=[PATCH], conversation=conversation)
    assert "I patch" not in prompt_text(ring) and '"name": "patch"' in prompt_text(ring)


async def test_a_namespace_is_flattened_for_the_model_and_named_to_the_client(ring: Ring) -> None:
    ring.replica.play(*letters(f"{FIND}\n{NOTE}"))
    async with ring.openai() as client:
        answer = await client.responses.create(model="tiny", input="hi", tools=[SPACE])
        find, note = answer.output
        assert (find.type, find.name, find.namespace) == ("function_call", "find", "crm")
        assert (note.type, note.name, note.namespace, note.input) == ("custom_tool_call", "note", "crm", "call back")
        ring.replica.play(*say("hello"))
        back = [*(item.to_dict() for item in answer.output)]
        await client.responses.create(model="tiny", input=[{"role": "user", "content": "hi"}, *back], tools=[SPACE])
    text = prompt_text(ring)
    assert '"name":"crm__find"' in text and f"{FIND}\n{NOTE}" in text


async def test_a_custom_tool_may_be_named_and_its_text_is_enforced(ring: Ring) -> None:
    ring.replica.play(*letters(CALL))
    for choice, wanted in (
        ({"type": "custom", "name": "patch"}, "patch"),
        ({"type": "function", "name": "find", "namespace": "crm"}, "crm__find"),
        ({"type": "function", "name": "crm__find"}, "crm__find"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "note"}]}, "crm__note"),
    ):
        ask = {"model": "tiny", "input": "hi", "tools": [PATCH, SPACE], "tool_choice": choice}
        answer = await ring.http.post(RESPONSES, json=ask)
        assert answer.status_code == 200, answer.text
        Response.model_validate(answer.json(), strict=True)
        grammar = ring.replica.requests[-1].request.sampling.grammar
        assert grammar is not None and f'"name\\": \\"{wanted}' in grammar.source
        others = {"patch", "crm__find", "crm__note"} - {wanted}
        assert not any(f'"name\\": \\"{other}' in grammar.source for other in others)
    in_chat = {"type": "custom", "custom": {"name": "patch"}}
    messages = [{"role": "user", "content": "hi"}]
    body: dict[str, Any] = {"model": "tiny", "messages": messages, "tools": [IN_CHAT], "tool_choice": in_chat}
    assert (await ring.http.post(CHAT, json=body)).json()["choices"][0]["message"]["tool_calls"][0]["type"] == "custom"


async def test_wrong_custom_tools_and_namespaces_are_refused_by_their_place(ring: Ring) -> None:
    def shaped(syntax: Any, definition: Any) -> dict[str, Any]:
        return {**PATCH, "format": {"type": "grammar", "syntax": syntax, "definition": definition}}

    hostile = "start: a\n" + "a: " + " | ".join(f'"{n}" a' for n in range(900))
    for tool, param in (
        ({"type": "custom"}, "tools[0].custom"),
        ({"type": "custom", "name": "a b"}, "tools[0].name"),
        ({**PATCH, "format": "text"}, "tools[0].format.type"),
        ({**PATCH, "format": {"type": "json"}}, "tools[0].format.type"),
        (shaped("gbnf", "x"), "tools[0].format.syntax"),
        (shaped("lark", None), "tools[0].format.definition"),
        (shaped("lark", ""), "tools[0].format.definition"),
        (shaped("lark", "x" * 8_193), "tools[0].format.definition"),
        (shaped("regex", "x" * 1_025), "tools[0].format.definition"),
        (shaped("regex", "(?=x)y"), "tools[0].format.definition"),
        (shaped("regex", "a("), "tools[0].format.definition"),
        (shaped("regex", "(" * 500 + "a" + ")*" * 500), "tools[0].format.definition"),
        (shaped("lark", "begin: 5"), "tools[0].format.definition"),
        (shaped("lark", "start: missing"), "tools[0].format.definition"),
        (shaped("lark", hostile), "tools[0].format.definition"),
        *((shaped("lark", source), "tools[0].format.definition") for source in BAD_LARK),
        (shaped("regex", "[z-a]"), "tools[0].format.definition"),
        ({"type": "namespace", "name": "crm"}, "tools[0].tools"),
        ({**SPACE, "tools": [{"type": "namespace", "name": "x", "tools": []}]}, "tools[0].tools[0].type"),
        ({"type": "mcp", "server_label": "x"}, "tools[0].type"),
    ):
        for choice in ("auto", "required"):
            await refused(ring, param, path=RESPONSES, tools=[tool], tool_choice=choice)
    await refused(ring, "tools", path=RESPONSES, tools=[PATCH, PATCH])
    twice = {"type": "function", "name": "crm__find"}
    await refused(ring, "tools", path=RESPONSES, tools=[SPACE, twice])
    await refused(ring, "tools[0].type", tools=[SPACE])
    call = {"type": "custom_tool_call", "call_id": "c", "name": "patch"}
    await refused(ring, "input[0].input", path=RESPONSES, input=[call])
    await still_serves(ring)


POLICY = """
[[rule]]
id = "lines"
kind = "pattern"
pattern = "zorg\\nblat"
action = "redact"
directions = ["tool"]

[[rule]]
id = "names"
kind = "terms"
terms = ["zorgblat"]
action = "redact"
directions = ["prompt"]
"""


async def test_a_rule_sees_the_free_text_and_not_its_escapes(make_ring: MakeRing, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY.replace("\\", "\\\\"))
    written = json.dumps({"input": "a zorg\nblat \\u0041 z"})
    async with make_ring(safety_policy=str(tmp_path / "policy.toml")) as ring:
        ring.replica.play(*letters(f'<tool_call>{{"name": "patch", "arguments": {written}}}</tool_call>'))
        answer = await ring.http.post(RESPONSES, json={"model": "tiny", "input": "hi", "tools": [PATCH]})
        said = answer.json()["output"][0]["input"]
    assert "zorg" not in said and said.startswith("a ") and said.endswith(" \\u0041 z")


async def test_a_rule_sees_what_a_client_calls_an_earlier_tool_and_its_free_text(
    make_ring: MakeRing, tmp_path: Path
) -> None:
    (tmp_path / "policy.toml").write_text(POLICY.replace("\\", "\\\\"))
    call = {"type": "custom_tool_call", "call_id": "c", "name": "zorgblat", "input": 'a\n"zorgblat" b'}
    async with make_ring(safety_policy=str(tmp_path / "policy.toml")) as ring:
        ring.replica.play(*say("hello"))
        items = [{"role": "user", "content": "hi"}, call, {**call, "namespace": "zorgblat", "name": "f"}]
        made = (await ring.http.post(RESPONSES, json={"model": "tiny", "input": items})).json()
        listed = await ring.http.get(f"{RESPONSES}/{made['id']}/input_items")
    assert "zorg" not in listed.text
    said = [item["input"] for item in listed.json()["data"] if item["type"] == "custom_tool_call"]
    assert len(said) == 2 and all(text.startswith('a\n"') and text.endswith('" b') for text in said)
