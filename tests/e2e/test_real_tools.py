"""Tool calls of the real default model, whose chat template knows no tools: told by the scaffold, held by grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.house import House

MODEL = "smollm2-135m-instruct"
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 20},
                    "unit": {"enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city", "unit"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "get_time"}},
]
QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]


@pytest.fixture
def client(house: House) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def check(name: str, arguments: str) -> None:
    found = json.loads(arguments)
    if name == "get_time":
        assert found == {}
    else:
        assert name == "get_weather" and set(found) == {"city", "unit"}
        assert isinstance(found["city"], str) and found["unit"] in ("celsius", "fahrenheit")


def test_required_calls_are_whole_valid_and_the_same_streamed(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": QUESTION, "tools": TOOLS, "tool_choice": "required", "temperature": 0}
    whole = client.chat.completions.create(**asked, parallel_tool_calls=False, max_tokens=120)
    assert whole.choices[0].finish_reason == "tool_calls" and whole.choices[0].message.content is None
    [call] = whole.choices[0].message.tool_calls or []
    check(call.function.name, call.function.arguments)
    with client.chat.completions.stream(**asked, parallel_tool_calls=False, max_tokens=120) as stream:
        final = stream.get_final_completion()
    [streamed] = final.choices[0].message.tool_calls or []
    assert (streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments)


def test_a_named_function_is_called_and_its_result_answered(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    first = client.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice=named, temperature=1, seed=3, n=2, max_tokens=160
    )
    for choice in first.choices:
        [call] = choice.message.tool_calls or []
        assert call.type == "function"
        assert (choice.finish_reason, call.function.name) == ("tool_calls", "get_weather")
        check(call.function.name, call.function.arguments)
    calls = first.choices[0].message.tool_calls or []
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump() for call in calls]},
        {"role": "tool", "tool_call_id": calls[0].id, "content": '{"degrees": 7}'},
    ]
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, tools=TOOLS, tool_choice="none", temperature=0, max_tokens=16
    )
    assert answer.choices[0].message.content and not answer.choices[0].message.tool_calls


NOTE = r"""
start: "*** Begin" LF line{1,3} "*** End" LF?
line: "+" /[a-z \t"]{1,12}/ LF
%import common.LF
"""


def test_a_custom_tool_gets_a_text_of_its_grammar_and_the_result_is_answered(client: openai.OpenAI) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": NOTE}
    tool: Any = {"type": "custom", "name": "note", "description": "Writes a note.", "format": form}
    asked: Any = {"model": MODEL, "tools": [tool], "max_output_tokens": 160}
    named: Any = {"type": "custom", "name": "note"}
    first = client.responses.create(**asked, input="Note that it rains.", tool_choice=named)
    assert first.status == "completed"
    [call] = first.output
    assert call.type == "custom_tool_call" and call.name == "note"
    assert re.fullmatch(r'\*\*\* Begin\n(\+[a-z \t"]{1,12}\n){1,3}\*\*\* End\n?', call.input)
    result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "noted"}
    second = client.responses.create(**asked, input=[result], previous_response_id=first.id, tool_choice="none")
    assert second.output_text
