"""No keyword of JSON Schema is passed over in silence: it is enforced, refused by its place, or named in a header."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from gateway.edge.schema.grammar import check_schema
from gateway.edge.schema.unenforced import settled, unenforced
from tests.gateway.edge.asks import CHAT, refused, whole
from tests.ring import Ring
from wire.errors import InvalidRequestError
from wire.grammar import start_matcher
from wire.messages import Grammar

pytestmark = pytest.mark.anyio

TOKENIZER = LLTokenizer("byte")
HEADER = "x-headrace-warning"
ARRAY, OBJECT, STRING = {"type": "array"}, {"type": "object"}, {"type": "string"}

# A schema, and a value that it does not let through.
ENFORCED: list[tuple[dict[str, Any], Any]] = [
    ({"type": "integer"}, "a"),
    ({"enum": [1, 2]}, 3),
    ({"const": "a"}, "b"),
    ({"multipleOf": 3}, 4),
    ({"minimum": 3}, 2),
    ({"maximum": 3}, 4),
    ({"exclusiveMinimum": 3}, 3),
    ({"exclusiveMaximum": 3}, 3),
    ({**STRING, "minLength": 2}, "a"),
    ({**STRING, "maxLength": 2}, "abc"),
    ({**STRING, "pattern": "^a"}, "b"),
    *(({**STRING, "format": name}, "no! ") for name in ("date-time", "date", "time", "duration", "email", "hostname")),
    *(({**STRING, "format": name}, "no! ") for name in ("ipv4", "ipv6", "uuid", "uri")),
    ({**ARRAY, "items": {"type": "integer"}}, ["a"]),
    ({**ARRAY, "prefixItems": [{"type": "integer"}]}, ["a"]),
    ({**ARRAY, "prefixItems": [{}], "items": False}, [1, 2]),
    ({**ARRAY, "minItems": 1}, []),
    ({**ARRAY, "maxItems": 1}, [1, 2]),
    ({**OBJECT, "properties": {"a": STRING}}, {"a": 1}),
    ({**OBJECT, "patternProperties": {"^a": STRING}}, {"a": 1}),
    ({**OBJECT, "additionalProperties": False}, {"a": 1}),
    ({**OBJECT, "required": ["a"]}, {}),
    ({**OBJECT, "minProperties": 1}, {}),
    ({**OBJECT, "maxProperties": 0}, {"a": 1}),
    ({"anyOf": [STRING, {"type": "null"}]}, 1),
    ({"oneOf": [STRING, {"type": "null"}]}, 1),
    ({"allOf": [{"minimum": 3}, {"type": "integer"}]}, 1),
    ({"$ref": "#/$defs/a", "$defs": {"a": STRING}}, 1),
    ({"$ref": "#a", "$defs": {"x": {**STRING, "$anchor": "a"}}}, 1),
    ({**OBJECT, "properties": {"a": {"not": {}}}}, {"a": 1}),
    ({"anyOf": [{"not": True}, STRING]}, 1),
]
NAMED: list[tuple[dict[str, Any], str]] = [
    ({"not": {"const": 1}}, "/not"),
    ({**OBJECT, "properties": {"a": {"not": {"const": 1}}}}, "/properties/a/not"),
    ({**OBJECT, "properties": {"a/b~": {"not": {"const": 1}}}}, "/properties/a~1b~0/not"),
    ({"if": {"const": 1}, "then": {"const": 2}}, "/if"),
    ({"if": {"const": 1}, "else": {"const": 2}}, "/if"),
    ({**OBJECT, "dependentSchemas": {"a": {"required": ["b"]}}}, "/dependentSchemas"),
    ({**OBJECT, "dependentRequired": {"a": ["b"]}}, "/dependentRequired"),
    ({**OBJECT, "dependencies": {"a": ["b"]}}, "/dependencies"),
    ({**OBJECT, "unevaluatedProperties": False}, "/unevaluatedProperties"),
    ({**OBJECT, "propertyNames": {"pattern": "^b"}}, "/propertyNames"),
    ({**ARRAY, "unevaluatedItems": False}, "/unevaluatedItems"),
    ({**ARRAY, "uniqueItems": True}, "/uniqueItems"),
    ({**ARRAY, "contains": STRING}, "/contains"),
    ({**ARRAY, "items": {**ARRAY, "contains": {}, "maxContains": 1}}, "/items/contains"),
    ({**STRING, "format": "regex"}, "/format"),
    ({"anyOf": [{**STRING, "format": "iri"}, {"type": "null"}]}, "/anyOf/0/format"),
    ({"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a"}}}, "/$dynamicRef"),
    (
        {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"prefixItems": [{"not": STRING}]}}},
        "/$defs/a/prefixItems/0/not",
    ),
    ({"additionalProperties": {"uniqueItems": True}}, "/additionalProperties/uniqueItems"),
    ({"patternProperties": {"^a": {"uniqueItems": True}}}, "/patternProperties/^a/uniqueItems"),
]
SAYS_NOTHING: list[dict[str, Any]] = [
    {**STRING, "then": {"const": 1}, "else": {"const": 2}, "not": False},
    {**STRING, "if": {"const": "a"}},
    {**ARRAY, "minContains": 2, "maxContains": 3, "uniqueItems": False, "unevaluatedItems": True},
    {**ARRAY, "contains": STRING, "minContains": 0},
    {**OBJECT, "propertyNames": {}, "unevaluatedProperties": {}, "dependentRequired": {}, "dependentSchemas": {}},
    {"type": "integer", "format": "int32"},
    {**STRING, "$defs": {"unused": {"not": {"const": 1}}}},
    {**OBJECT, "properties": {"not": STRING, "if": STRING}, "default": {"not": 1}},
]


def lets_through(schema: dict[str, Any], value: Any) -> bool:
    matcher: LLMatcher = start_matcher(Grammar(kind="json_schema", source=json.dumps(settled(schema))), TOKENIZER)
    text = json.dumps(value).encode()
    return matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting()


@pytest.mark.parametrize(("schema", "wrong"), ENFORCED, ids=str)
def test_a_keyword_that_passes_is_enforced(schema: dict[str, Any], wrong: Any) -> None:
    check_schema(settled(schema), "field")
    assert not lets_through(schema, wrong)


@pytest.mark.parametrize(("schema", "place"), NAMED, ids=[place for _, place in NAMED])
def test_a_keyword_that_is_not_enforced_is_refused_by_its_place(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_schema(settled(schema), "field")
    assert caught.value.param == "field" and f"field: {place}" in caught.value.message
    check_schema(settled(schema), "field", lenient=True)


@pytest.mark.parametrize("schema", SAYS_NOTHING, ids=str)
def test_a_keyword_that_says_nothing_where_it_stands_is_no_reason_to_refuse(schema: dict[str, Any]) -> None:
    made = settled(schema)
    check_schema(made, "field")
    assert not list(unenforced(made))
    start_matcher(Grammar(kind="json_schema", source=json.dumps(made)), TOKENIZER)


async def test_the_place_is_in_the_answer_to_a_strict_schema_and_in_a_header_for_others(ring: Ring) -> None:
    schema = {**OBJECT, "properties": {"a": {"not": STRING}, "b\n\u00e9": {"not": STRING}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    error = await refused(ring, "response_format.json_schema.schema", response_format=form)
    assert "/properties/a/not" in str(error)
    form["json_schema"]["strict"] = False  # type: ignore[index]
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "response_format": form}
    answer = await ring.http.post(CHAT, json=ask)
    assert answer.status_code == 200
    said = answer.headers[HEADER]
    assert said.startswith("response_format.json_schema.schema: not enforced: /properties/a/not, /properties/b")
    function = {"name": "f", "parameters": schema}
    ask = {**ask, "tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    assert "tools[0]: not enforced: /properties/a/not" in (await ring.http.post(CHAT, json=ask)).headers[HEADER]


async def test_what_nothing_satisfies_is_refused_whether_it_is_strict_or_not(ring: Ring) -> None:
    for strict in (True, False):
        never = {**OBJECT, "properties": {"a": {"not": True}}, "required": ["a"]}
        wrong: tuple[dict[str, Any], ...] = ({"not": {}}, never)
        for schema in wrong:
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}
            await refused(ring, "response_format.json_schema.schema", response_format=form)
    await whole(ring, guided_json={**OBJECT, "properties": {"a": {"not": {}}}})
