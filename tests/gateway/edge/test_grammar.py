"""What an answer must look like: every way to ask for it reaches the replica, and what cannot work is refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pydantic import BaseModel

from gateway.edge.grammar_trial import GrammarTrial, walk
from gateway.edge.schema.finite import has_finite_value as has_finite
from tests.gateway.edge.asks import CHAT, RESPONSES, refused, still_serves, whole
from tests.ring import Ring
from tests.script import Script, say
from tests.tiny_model import write_tiny_model
from wire.errors import InvalidRequestError
from wire.grammar import GrammarError, grammar_tokenizer, start_matcher
from wire.messages import Grammar
from wire.model_card import ModelCard
from wire.vocabulary import Vocabulary

pytestmark = pytest.mark.anyio


class Person(BaseModel):
    name: str
    age: int


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {
    "type": "object",
    "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["children"],
}
NODE = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
LIST = {"$defs": {"node": {**NODE, "required": ["next"]}}, "$ref": "#/$defs/node"}


def schema_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


FIELDS: list[tuple[dict[str, Any], Grammar]] = [
    ({"response_format": {"type": "json_object"}}, Grammar(kind="json_object", field="response_format")),
    (
        {"response_format": schema_format(PERSON, strict=True)},
        Grammar(kind="json_schema", source=json.dumps(PERSON), field="response_format.json_schema.schema"),
    ),
    (
        {"response_format": schema_format(PERSON)},
        Grammar(
            kind="json_schema", source=json.dumps(PERSON), lenient=True, field="response_format.json_schema.schema"
        ),
    ),
    (
        {"response_format": {"type": "json_object", "schema": PERSON}},
        Grammar(kind="json_schema", source=json.dumps(PERSON), field="response_format.schema"),
    ),
    (
        {"structured_outputs": {"regex": "[a-z]+"}},
        Grammar(kind="regex", source="[a-z]+", field="structured_outputs.regex"),
    ),
    (
        {"structured_outputs": {"json": json.dumps(PERSON)}},
        Grammar(kind="json_schema", source=json.dumps(PERSON), field="structured_outputs.json"),
    ),
    (
        {"structured_outputs": {"json_object": True}},
        Grammar(kind="json_object", field="structured_outputs.json_object"),
    ),
    ({"guided_choice": ["yes", "no"]}, Grammar(kind="choice", source='["yes", "no"]', field="guided_choice")),
    ({"guided_json": PERSON}, Grammar(kind="json_schema", source=json.dumps(PERSON), field="guided_json")),
    ({"guided_regex": "a|b"}, Grammar(kind="regex", source="a|b", field="guided_regex")),
    ({"guided_grammar": 'start: "a"'}, Grammar(kind="lark", source='start: "a"', field="guided_grammar")),
    (
        {"guided_grammar": 'start: "a"', "structured_outputs": {"grammar": 'start: "a"'}},
        Grammar(kind="lark", source='start: "a"', field="structured_outputs.grammar"),
    ),
    (
        {"response_format": schema_format(PERSON), "guided_json": PERSON},
        Grammar(kind="json_schema", source=json.dumps(PERSON), field="guided_json"),
    ),
]


def compact(grammar: Grammar | None) -> Any:
    assert grammar is not None
    is_json = grammar.kind in ("json_schema", "choice")
    return grammar.kind, json.loads(grammar.source) if is_json else grammar.source, grammar.lenient, grammar.field


async def test_a_format_reaches_the_replica_as_its_grammar(ring: Ring) -> None:
    for fields, grammar in FIELDS:
        await whole(ring, **fields)
        assert compact(ring.replica.requests[-1].request.sampling.grammar) == compact(grammar)


async def test_plain_text_has_no_grammar(ring: Ring) -> None:
    await whole(ring, response_format={"type": "text"})
    assert ring.replica.requests[-1].request.sampling.grammar is None


async def test_responses_take_their_format_flat_and_repeat_it(ring: Ring) -> None:
    form = {"type": "json_schema", "name": "x", "schema": PERSON, "strict": True}
    answer = await ring.http.post(RESPONSES, json={"model": "tiny", "input": "hi", "text": {"format": form}})
    assert answer.status_code == 200
    assert answer.json()["text"]["format"] == form
    grammar = ring.replica.requests[-1].request.sampling.grammar
    assert compact(grammar) == ("json_schema", PERSON, False, "text.format.schema")


async def test_completions_take_a_format(ring: Ring) -> None:
    answer = await ring.http.post("/v1/completions", json={"model": "tiny", "prompt": "a", "guided_choice": ["b"]})
    assert answer.status_code == 200
    grammar = ring.replica.requests[-1].request.sampling.grammar
    assert grammar is not None and grammar.kind == "choice"


async def test_the_openai_client_parses_a_pydantic_answer(ring: Ring) -> None:
    ring.replica.script = Script(say(*(bytes([byte]) for byte in b'{"name": "Ada", "age": 36}')))
    async with ring.openai() as client:
        answer = await client.chat.completions.parse(
            model="tiny", messages=[{"role": "user", "content": "who?"}], response_format=Person
        )
        assert answer.choices[0].message.parsed == Person(name="Ada", age=36)
        response = await client.responses.parse(model="tiny", input="who?", text_format=Person)
        assert response.output_parsed == Person(name="Ada", age=36)
    grammar = ring.replica.requests[-1].request.sampling.grammar
    assert grammar is not None and not grammar.lenient


def has_finite_value(schema: dict[str, Any]) -> bool:
    return has_finite(schema, "field")


SCHEMA_FIELD = "response_format.json_schema.schema"
BAD_FORMATS: list[tuple[Any, str]] = [
    ({"type": "structural_tag"}, "response_format.type"),
    ({}, "response_format.type"),
    ({"json_schema": {"schema": PERSON}}, "response_format.type"),
    ({"type": "json_schema"}, "response_format.json_schema.schema"),
    ({"type": "json_schema", "json_schema": {"name": "x"}}, SCHEMA_FIELD),
    (schema_format("{"), SCHEMA_FIELD),
    (schema_format([1]), SCHEMA_FIELD),
    (schema_format(PERSON, strict="yes"), "response_format.json_schema.strict"),
    (schema_format({"type": "array", "uniqueItems": True}, strict=True), SCHEMA_FIELD),
    (schema_format({"type": "string", "format": "idn-email"}, strict=True), SCHEMA_FIELD),
]


async def test_a_format_that_is_none_is_refused_by_its_field(ring: Ring) -> None:
    for form, param in BAD_FORMATS:
        await refused(ring, param, response_format=form)


async def test_what_is_not_strict_may_hold_what_cannot_be_enforced(ring: Ring) -> None:
    await whole(ring, response_format=schema_format({"type": "array", "uniqueItems": True, "items": {}}))


async def test_two_formats_are_refused(ring: Ring) -> None:
    await refused(ring, "guided_regex", response_format={"type": "json_object"}, guided_regex="a")
    await refused(ring, "structured_outputs.choice", structured_outputs={"regex": "a", "choice": ["a"]})


HOSTILE: dict[str, Any] = {
    "a reference to itself": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    "a cycle of two": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "an object within itself": {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]},
    "an array of itself": {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    "a dangling reference": {"$ref": "#/$defs/zz"},
    "an unknown type": {"type": "nope"},
    "nothing allowed": {"not": {}},
    "500 levels": nested(250),
    "a long pattern": {"type": "string", "pattern": "^" + "(" * 50_000 + "a" + ")" * 50_000 + "$"},
    "a deep pattern": {"type": "string", "pattern": "^" + "(" * 1000 + "a" + ")" * 1000 + "$"},
    "a look-behind": {"type": "string", "pattern": "(?<=x)*"},
    "a quantifier of nothing": {"type": "string", "pattern": "*a"},
    "repeats of repeats": {"type": "string", "pattern": "^((a{1,200}){1,200}){1,200}x$"},
    "a long string": {"type": "string", "maxLength": 100_000_000},
    "a huge enum": {"enum": list(range(200_000))},
    "many properties": {"type": "object", "properties": {f"p{n}": {} for n in range(5_000)}},
    "every combination": {"allOf": [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(12)]},
}


async def test_a_schema_that_nothing_satisfies_or_that_is_made_to_hurt_is_refused(ring: Ring) -> None:
    for name, schema in HOSTILE.items():
        error = await refused(ring, SCHEMA_FIELD, response_format=schema_format(schema, strict=True))
        assert error["message"].startswith(SCHEMA_FIELD), name
    await still_serves(ring)


async def test_a_schema_of_5000_levels_is_refused(ring: Ring) -> None:
    text = '{"type":"object","properties":{"a":' * 5_000 + "{}" + "}}" * 5_000  # more than Python's encoder takes
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "guided_json": 0})
    response = await ring.http.post(CHAT, content=body.replace('"guided_json": 0', f'"guided_json": {text}'))
    assert response.status_code == 400
    await still_serves(ring)


BAD_LARK = [
    "start: start",
    'start: "a" x\nx: x "b"',
    'foo: "a"',
    "start: /(/",
    "start: " + "(" * 2_000 + '"a"' + ")" * 2_000,
    'start: %json {"type":"nope"}',
    "start: A\nA: B{1000}\nB: C{1000}\nC: 'x'{1000}",
    "start: " + "|".join(f'"w{n}"' for n in range(2_000)),
    "",
]


async def test_a_lark_grammar_without_an_end_or_a_meaning_is_refused(ring: Ring) -> None:
    for source in BAD_LARK:
        await refused(ring, "structured_outputs.grammar", structured_outputs={"grammar": source})


async def test_legal_recursion_and_large_schemas_work(ring: Ring) -> None:
    for schema in (PERSON, TREE, LIST, {"enum": list(range(1000))}, nested(30)):
        await whole(ring, response_format=schema_format(schema, strict=True))


async def test_choices_that_are_none_are_refused(ring: Ring) -> None:
    for choices in ([], [""], ["a"] * 1_001):
        await refused(ring, "guided_choice", guided_choice=choices)


def test_chains_of_references_resolve_in_either_direction() -> None:
    forward = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(200)} | {"d200": {"type": "null"}}
    backward = dict(reversed(forward.items()))
    for defs in (forward, backward):
        assert has_finite_value({"$defs": defs, "$ref": "#/$defs/d0"})


def test_references_may_name_any_place_and_escape_its_name() -> None:
    assert has_finite_value({"properties": {"a/b~c": {"type": "null"}}, "$ref": "#/properties/a~1b~0c"})
    assert has_finite_value({"anyOf": [{"type": "null"}, {"$ref": "#/anyOf/0"}]})
    assert not has_finite_value({"anyOf": [{"$ref": "#/anyOf/1"}, {"$ref": "#/anyOf/0"}]})


def test_references_too_intertwined_are_refused_for_it() -> None:
    # Each place becomes finite one round after the next one, and the order has no direction.
    order = random.Random(1).sample(range(800), 800)
    defs: dict[str, Any] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in order} | {"d800": {"type": "null"}}
    uses = [{"anyOf": [{"$ref": f"#/$defs/d{n}"} for n in order]}]
    with pytest.raises(InvalidRequestError, match="intertwined"):
        has_finite_value({"$defs": defs, "allOf": uses * 10, "$ref": "#"})


async def test_a_grammar_that_has_passed_is_not_tried_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_model(tmp_path)
    trial = GrammarTrial(ModelCard.load(path), Vocabulary.load(path))
    grammar = Grammar(kind="choice", source='["a"]')
    await trial.admit(grammar)
    monkeypatch.setattr(trial, "_try", None)
    await trial.admit(grammar)


def test_a_walk_finds_what_the_compiler_lets_pass() -> None:
    vocabulary = Vocabulary([bytes([n]) for n in range(256)], {})
    tokenizer = grammar_tokenizer(vocabulary, [], 256, single_bytes=True)
    walk(start_matcher(Grammar(kind="regex", source="a*"), tokenizer))
    with pytest.raises(GrammarError, match="nothing can satisfy it"):
        walk(start_matcher(Grammar(kind="lark", source='start: "a" x\nx: x "b"'), tokenizer))
