"""Tool calling through the ring, read by OpenAI's own client: whole and streamed, and what goes wrong."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.gateway.edge.asks import refused, still_serves, streamed, whole
from tests.ring import MakeRing, Ring
from tests.script import Script, say, tag, think
from wire.messages import unpack_ids

pytestmark = pytest.mark.anyio

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
ARGUMENTS = '{"city": "Os\\"lo}"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
BOTH = f'{CALL}\n<tool_call>\n{{"name": "clock", "arguments": {{}}}}\n</tool_call>'


def letters(text: str) -> list[Any]:
    """Every byte a token of its own."""
    return say(*(bytes([byte]) for byte in text.encode()))


@pytest.fixture
async def client(ring: Ring) -> AsyncIterator[AsyncOpenAI]:
    async with ring.openai() as opened:
        yield opened


def calls_of(stream: Any, index: int = 0) -> list[tuple[str, str]]:
    """Put the deltas of a stream together, checking OpenAI's order: id and name first, once, then arguments."""
    calls: list[dict[str, Any]] = []
    for chunk in stream.chunks:
        for choice in chunk["choices"]:
            for delta in choice["delta"].get("tool_calls", ()) if choice["index"] == index else ():
                if delta["index"] == len(calls):
                    assert set(delta) == {"index", "id", "type", "function"}
                    assert (delta["type"], delta["function"]["arguments"]) == ("function", "")
                    calls.append({"id": delta["id"], **delta["function"]})
                else:
                    assert delta["index"] == len(calls) - 1 and set(delta) == {"index", "function"}
                    assert set(delta["function"]) == {"arguments"} and delta["function"]["arguments"]
                    calls[-1]["arguments"] += delta["function"]["arguments"]
    assert len({call["id"] for call in calls}) == len(calls)
    return [(call["name"], call["arguments"]) for call in calls]


async def both_ways(ring: Ring, **fields: Any) -> tuple[str | None, list[tuple[str, str]], str]:
    """Ask in both modes, check that they agree, and return content, calls and finish reason."""
    fields = {"tools": TOOLS, **fields}
    stream, answer = await streamed(ring, **fields), await whole(ring, **fields)
    choice = answer["choices"][0]
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    assert calls_of(stream) == calls
    assert (stream.text() or None) == (message["content"] or None)
    assert stream.finish_reason() == choice["finish_reason"]
    return message["content"], calls, choice["finish_reason"]


async def test_a_call_streams_in_openais_shape_and_never_shows_its_markup(ring: Ring) -> None:
    ring.replica.play(*letters(f"I look.\n{CALL}"))
    assert await both_ways(ring) == ("I look.", [("weather", ARGUMENTS)], "tool_calls")


async def test_calls_alone_have_no_content_and_may_be_several(ring: Ring) -> None:
    ring.replica.play(*letters(BOTH))
    assert await both_ways(ring) == (None, [("weather", ARGUMENTS), ("clock", "{}")], "tool_calls")


async def test_a_stream_that_begins_with_a_call_opens_with_its_role_and_names_it_never_again(ring: Ring) -> None:
    ring.replica.play(*letters(CALL))
    deltas = [chunk["choices"][0]["delta"] for chunk in (await streamed(ring, tools=TOOLS)).chunks]
    assert deltas[0] == {"role": "assistant", "content": ""} and "tool_calls" in deltas[1]
    assert not any("role" in delta or "content" in delta for delta in deltas[1:])


async def test_one_call_ends_the_answer_when_parallel_calls_are_off(ring: Ring) -> None:
    ring.replica.play(*letters(BOTH), finish=None)
    assert await both_ways(ring, parallel_tool_calls=False) == (None, [("weather", ARGUMENTS)], "tool_calls")
    await ring.until_idle()


async def test_the_clients_helper_puts_the_call_together_and_parses_it(ring: Ring, client: Any) -> None:
    ring.replica.play(*letters(CALL))
    async with client.chat.completions.stream(
        model="tiny", messages=[{"role": "user", "content": "hi"}], tools=TOOLS
    ) as stream:
        kinds = {event.type async for event in stream}
        final = await stream.get_final_completion()
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    call = final.choices[0].message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": 'Os"lo}'})
    assert final.choices[0].finish_reason == "tool_calls"


async def test_a_conversation_with_calls_goes_on_and_the_prompt_holds_call_and_result(ring: Ring, client: Any) -> None:
    ring.replica.play(*letters(CALL))
    question = [{"role": "user", "content": "hi"}]
    first = await client.chat.completions.create(model="tiny", messages=question, tools=TOOLS)
    ring.replica.play(*say("hello"))
    call = first.choices[0].message.tool_calls[0]
    messages = [
        *question,
        first.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "cold & <wet>"},
        {"role": "tool", "tool_call_id": "other", "content": "second"},
    ]
    second = await client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)
    assert second.choices[0].message.content == "hello"
    text = prompt_text(ring)
    assert '"name":"weather"' in text.split("<tools>")[1].split("</tools>")[0]
    assert f"<|im_start|>assistant\n{CALL}<|im_end|>" in text
    results = "<tool_response>\ncold & <wet>\n</tool_response>\n<tool_response>\nsecond\n</tool_response>"
    assert f"<|im_start|>user\n{results}<|im_end|>" in text


def prompt_text(ring: Ring) -> str:
    """Return the newest prompt, control tokens spelled out."""
    prompt = ring.replica.requests[-1].prompt
    assert prompt is not None
    names = {token_id: text for text, token_id in ring.replica.vocabulary.special.items()}
    ids = unpack_ids(prompt.token_ids)
    return b"".join(names[i].encode() if i in names else ring.replica.vocabulary.token_bytes(i) for i in ids).decode()


async def test_without_tools_or_with_choice_none_markup_is_text_and_no_tool_is_shown(ring: Ring) -> None:
    ring.replica.play(*letters(CALL))
    ways: tuple[dict[str, Any], ...] = ({"tools": TOOLS, "tool_choice": "none"}, {"tools": []}, {"tools": None})
    for fields in ways:
        assert await both_ways(ring, **fields) == (CALL, [], "stop")
        assert "# Tools" not in prompt_text(ring)


async def test_a_call_cut_by_the_limit_ends_with_length_in_both_modes(ring: Ring) -> None:
    ring.replica.play(*letters(CALL))
    for limit in (1, 10, 20, 40, 50, 60, len(CALL) - 1):
        content, calls, reason = await both_ways(ring, max_tokens=limit)
        assert reason == "length"
        assert all(ARGUMENTS.startswith(arguments) for _, arguments in calls)
        assert "tool_call>" not in (content or "")


async def test_a_call_that_must_come_is_a_finished_one_only_when_its_arguments_are_whole(ring: Ring) -> None:
    arguments = json.dumps({"city": "a long name " * 4})
    text = f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'
    ring.replica.play(*letters(text))
    whole_at = text.index(arguments) + len(arguments)
    for limit in (*range(8, 65, 4), whole_at - 1, len(text) - 1, len(text) + 1):
        content, calls, reason = await both_ways(ring, max_tokens=limit, tool_choice="required")
        assert (content or "") in text and "tool_call>" not in (content or "")
        assert reason == ("tool_calls" if limit > len(text) else "length"), limit
        assert all(arguments.startswith(part) for _, part in calls)
        assert reason == "length" or calls == [("weather", arguments)]


async def test_a_call_cut_by_the_limit_is_no_finished_one_in_other_dialects_either(ring: Ring) -> None:
    ring.replica.play(*letters(CALL))
    function = WEATHER["function"]
    for limit in (20, 60, len(CALL) - 1):
        tool = {"name": "weather", "input_schema": function["parameters"]}
        ask = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": limit, "tools": [tool]}
        message = (await ring.http.post("/v1/messages", json=ask)).json()
        assert message["stop_reason"] == "max_tokens"
        ask = {"model": "tiny", "input": "hi", "max_output_tokens": limit, "tools": [{"type": "function", **function}]}
        response = (await ring.http.post("/v1/responses", json=ask)).json()
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        for call in calls:
            assert ARGUMENTS.startswith(call["arguments"])
            assert call["status"] == "incomplete" or call["arguments"] == ARGUMENTS


def whole_text(answer: str) -> str:
    """Return the texts of an answer, whole or streamed, one behind the other."""
    return "".join(re.findall(r'"(?:content|text|delta)":\s?"((?:[^"\\\\]|\\\\.)*)"', answer))


async def test_of_a_call_that_the_limit_cut_nothing_is_text_in_any_dialect_whole_or_streamed(ring: Ring) -> None:
    ring.replica.play(*letters(f"I look.\n{CALL}"))
    function = WEATHER["function"]
    messages = [{"role": "user", "content": "hi"}]
    asks: list[tuple[str, str, dict[str, Any]]] = [
        ("/v1/chat/completions", "max_tokens", {"messages": messages, "tools": TOOLS}),
        ("/v1/responses", "max_output_tokens", {"input": "hi", "tools": [{"type": "function", **function}]}),
        (
            "/v1/messages",
            "max_tokens",
            {"messages": messages, "tools": [{"name": "weather", "input_schema": function["parameters"]}]},
        ),
    ]
    for limit in (9, 15, 19, 23, 36, len(CALL) + 2, len(CALL) + 7):
        for path, name, fields in asks:
            for stream in (False, True):
                ask = {"model": "tiny", name: limit, "stream": stream, **fields}
                answer = (await ring.http.post(path, json=ask)).text
                assert "<" not in answer and '\\"name\\"' not in answer and "I look." in whole_text(answer), ask


async def test_broken_arguments_are_passed_on_as_they_came_and_are_no_finished_call(ring: Ring) -> None:
    ring.replica.play(*letters('<tool_call>{"name": "weather", "arguments": {"city": Oslo, }'))
    assert await both_ways(ring) == (None, [("weather", '{"city": Oslo, }')], "stop")
    ring.replica.play(*letters('<tool_call>{"name": "nobody", "arguments": {\'a\': 1}}</tool_call>'))
    assert await both_ways(ring) == (None, [("nobody", "{'a': 1}")], "tool_calls")
    ring.replica.play(*letters("<tool_call>nonsense</tool_call>"))
    assert await both_ways(ring) == ("nonsense", [], "stop")
    ring.replica.play(*letters("a <tool"))
    assert await both_ways(ring) == ("a <tool", [], "stop")


async def test_bytes_that_are_no_utf8_and_split_characters_inside_a_call(ring: Ring) -> None:
    ring.replica.play(
        *letters('<tool_call>{"name": "weather", "arguments": {"city": "'),
        *say(b"\xff", b"\xf0\x9f"),
        *say(b"\x98\x80"),
        *letters('"}}</tool_call>'),
    )
    assert await both_ways(ring) == (None, [("weather", '{"city": "\ufffd😀"}')], "tool_calls")


async def test_stop_strings_are_looked_for_in_content_only(ring: Ring) -> None:
    ring.replica.play(*letters(f"go {CALL} STOP lo"))
    assert await both_ways(ring, stop=["lo", "tool_call"]) == ("go STOP ", [("weather", ARGUMENTS)], "stop")


async def test_reasoning_comes_before_the_call(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *letters(CALL))
    answer = await whole(ring, tools=TOOLS)
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hidden ", None)
    assert message["tool_calls"][0]["function"]["name"] == "weather"


async def test_each_choice_has_its_own_calls(ring: Ring) -> None:
    ring.replica.script = Script(letters(CALL), choices={1: letters(BOTH), 2: say("hello")})
    stream = await streamed(ring, tools=TOOLS, n=3)
    assert [len(calls_of(stream, index)) for index in range(3)] == [1, 2, 0]
    assert [stream.finish_reason(index) for index in range(3)] == ["tool_calls", "tool_calls", "stop"]
    for index in range(3):
        first = next(c for chunk in stream.chunks for c in chunk["choices"] if c["index"] == index)
        assert first["delta"] == {"role": "assistant", "content": ""}


async def test_log_probabilities_cover_what_is_said_and_no_call(ring: Ring) -> None:
    ring.replica.play(*letters(f"I look. {CALL}"))
    answer = await whole(ring, tools=TOOLS, logprobs=True)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == b"I look."


async def test_a_safety_rule_sees_arguments(make_ring: MakeRing, tmp_path: Any) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rule]]\nid = "z"\nkind = "terms"\nterms = ["zorgblat"]\naction = "block"\n')
    async with make_ring(safety_policy=str(policy)) as ring:
        ring.replica.play(*letters(CALL.replace("lo}", " zorgblat ")))
        content, calls, reason = await both_ways(ring)
        assert (content, reason) == (None, "content_filter")
        assert "zorg" not in calls[0][1]


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("tools[0].type", {"tools": [{"type": "web_search"}]}),
    ("tools[0].function", {"tools": [{"type": "function"}]}),
    ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
    ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "x" * 65}}]}),
    ("tools[0].function.parameters", {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}),
    ("tools[0].function.strict", {"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}),
    ("tools", {"tools": [CLOCK] * 129}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": "any"}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "custom", "name": "weather"}}),
    ("tool_choice.type", {"tools": TOOLS, "tool_choice": {"type": "web_search"}}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}),
]


async def test_wrong_tools_are_refused_by_their_place(ring: Ring) -> None:
    for param, fields in WRONG:
        await refused(ring, param, **fields)
    await still_serves(ring)


@pytest.mark.parametrize("choice", [{}, {"type": "function"}, {"name": 3}, {"type": "custom", "custom": {}}], ids=str)
async def test_a_choice_that_names_no_tool_is_told_what_would(ring: Ring, choice: dict[str, Any]) -> None:
    error = await refused(ring, "tool_choice", tools=TOOLS, tool_choice=choice)
    kind = choice.get("type", "function")
    said = f'tool_choice: names no tool; it must be {{"type": "{kind}", "{kind}": {{"name": ...}}}}, or one of'
    assert error["message"].startswith(said)


async def test_schemas_of_arguments_that_cannot_work_are_refused_before_anything_runs(ring: Ring) -> None:
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    for schema in ({"type": "nope"}, endless, {"type": "string", "pattern": "(?<=x)*"}, {"$ref": "#/missing"}):
        bad = {"type": "function", "function": {"name": "bad", "parameters": schema}}
        error = await refused(ring, "tools[1]", tools=[CLOCK, bad], tool_choice="required")
        assert error["code"] == "invalid_request"
    tree = {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
        "additionalProperties": False,
    }
    good = {"type": "function", "function": {"name": "good", "parameters": tree}}
    await whole(ring, tools=[good], tool_choice="required")
    assert len(ring.replica.requests) == 1, "the others have not come so far"


async def test_a_choice_of_allowed_tools_shows_only_these(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "clock"}}]}
    await whole(ring, tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert "clock" in prompt_text(ring) and "weather" not in prompt_text(ring)
