"""Values of every kind in every place of free-form fields, however deep: taken or refused, never a fault of ours."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from gateway.edge.schema.body import decode
from gateway.edge.schema.chat import ChatRequest, translate_chat
from gateway.edge.schema.grammar import check_schema, passed_over
from gateway.edge.schema.messages import MessagesRequest, translate_messages
from gateway.edge.schema.responses import ResponsesRequest, translate_responses
from gateway.edge.schema.tools import plan_tools
from tests.gateway.edge.test_tool_grammar import card
from wire.errors import InvalidRequestError
from wire.messages import Grammar

ODD: tuple[Any, ...] = ([[]], {}, True, 7)
USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "description": "d", "strict": True, "parameters": {"type": "object"}}
GRAMMAR = {"syntax": "regex", "definition": "[a-z]"}
FORMAT = {"name": "n", "strict": True, "schema": {"type": "object"}}
CHAT = {
    "model": "tiny",
    "messages": [USER],
    "tools": [
        {"type": "function", "function": FUNCTION},
        {"type": "custom", "custom": {"name": "k", "format": {"type": "grammar", "grammar": GRAMMAR}}},
    ],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "f"}}]}},
    "response_format": {"type": "json_schema", "json_schema": FORMAT},
    "prediction": {"type": "content", "content": [{"type": "text", "text": "x"}]},
}
SPACE = {"type": "namespace", "name": "s", "tools": [{"type": "function", **FUNCTION}]}
RESPONSES = {
    "model": "tiny",
    "input": [
        {**USER, "content": [{"type": "input_text", "text": "x"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "namespace": "s", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "additional_tools", "tools": [{"type": "custom", "name": "g"}]},
    ],
    "tools": [SPACE, {"type": "custom", "name": "k", "format": {"type": "grammar", **GRAMMAR}}],
    "tool_choice": {"type": "function", "name": "f", "namespace": "s"},
    "text": {"format": {"type": "json_schema", **FORMAT}},
}
DOCUMENT = {"type": "document", "source": {"type": "text", "data": "x"}, "title": "t", "citations": {"enabled": False}}
MESSAGES = {
    "model": "tiny",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "x"}],
    "messages": [
        {"role": "user", "content": [DOCUMENT, {**DOCUMENT, "source": {"type": "content", "content": "x"}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "f", "input": {"x": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": "x"}]},
    ],
    "tools": [{"type": "custom", "name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "f"},
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": ["string", "null"], "enum": ["x", 1], "pattern": "x", "format": "date", "minLength": 1},
        "b": {"$ref": "#/$defs/q"},
        "c": {"type": "array", "items": {"type": "integer", "minimum": 1, "multipleOf": 1}, "prefixItems": [{}]},
        "d": {"anyOf": [{}, {"const": 1}], "allOf": [{"$ref": "#/$defs/q"}], "not": {"type": "null"}, "if": {}},
    },
    "patternProperties": {"^x": {}},
    "required": ["a", "b"],
    "additionalProperties": {"type": "string"},
    "dependentRequired": {"a": ["b"]},
    "$defs": {"q": {"type": "integer"}},
}


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (key,)
        yield from ((key, *rest) for rest in places(one))


def with_odd_values(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the body with a value of each kind in each place."""
    for *way, last in places(body):
        for value in ODD:
            changed = node = copy.deepcopy(body)
            for key in way:
                node = node[key]
            node[last] = value
            yield changed


@pytest.mark.parametrize(
    ("kind", "translate", "body"),
    [
        (ChatRequest, partial(translate_chat, max_choices=1), CHAT),
        (ResponsesRequest, translate_responses, RESPONSES),
        (MessagesRequest, translate_messages, MESSAGES),
    ],
    ids=["chat", "responses", "messages"],
)
def test_a_body_with_a_value_of_another_kind_somewhere_is_taken_or_refused(
    kind: type, translate: Callable[..., Any], body: dict[str, Any]
) -> None:
    model = card("hermes")
    translate(decode(json.dumps(body).encode(), kind), model)
    for changed in with_odd_values(body):
        with suppress(InvalidRequestError):
            translate(decode(json.dumps(changed).encode(), kind), model)


@pytest.mark.parametrize("style", ["json", "qwen3_coder", "glm45"])
def test_a_schema_with_a_value_of_another_kind_somewhere_is_taken_or_refused(style: str) -> None:
    model = card(style)
    for changed in with_odd_values(SCHEMA):
        tools = [{"type": "function", "function": {"name": "f", "parameters": changed}}]
        with suppress(InvalidRequestError):
            passed_over(Grammar(kind="json_schema", source=json.dumps(changed), lenient=True))
            plan_tools(tools, "required", None, model)
            check_schema(changed, "schema")
