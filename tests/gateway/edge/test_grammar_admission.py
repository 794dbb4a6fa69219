"""What a grammar may cost before its request is admitted: limits instead of clocks, and each grammar tried once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.edge.grammar_trial import GrammarTrial
from gateway.edge.schema import schema_size
from gateway.edge.schema.grammar import check_schema, check_tools
from gateway.edge.schema.schema_size import Size, measure
from tests.gateway.edge.asks import refused, still_serves, whole
from tests.ring import Ring
from tests.tiny_model import write_tiny_model
from wire.errors import InvalidRequestError
from wire.messages import Grammar
from wire.model_card import ModelCard
from wire.vocabulary import Vocabulary

pytestmark = pytest.mark.anyio


def either(count: int) -> dict[str, Any]:
    return {"anyOf": [{"const": number} for number in range(count)]}


def many(count: int, schema: Any = None) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": schema or {"type": "string"} for n in range(count)}}


LIMITS: list[tuple[dict[str, Any], str]] = [
    (many(schema_size.MAX_IN_OBJECT + 1), "400 properties"),
    ({"prefixItems": [many(340)] * 3}, "1000 properties"),
    ({"patternProperties": {f"^a{n}$": {} for n in range(401)}}, "400 patternProperties"),
    ({"anyOf": [{}] * 2001}, "2000 options"),
    (either(1001), "1000 enum values"),
    ({"prefixItems": [{}] * 2001}, "2000 options"),
    ({"allOf": [either(9), either(9)]}, "64 combinations"),
    ({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": either(9)}}, "64 combinations"),
    ({**either(2), "allOf": [either(2)] * 6}, "64 combinations"),
    ({"enum": [[n] * 4 for n in range(300)]}, "1000 enum values"),
    ({"const": list(range(1001))}, "1000 enum values"),
    (many(40, {"type": "string", "pattern": "a" * 500}), "16384 characters in its patterns"),
    ({"type": "integer", "multipleOf": 99_999}, "multipleOf"),
    ({"type": "number", "multipleOf": 3.14159}, "multipleOf"),
    (many(10, {"type": "integer", "multipleOf": 501}), "multipleOf"),
    ({"type": "string", "maxLength": 10**9}, "maxLength may be 100000"),
    ({"description": "x" * 120_001}, "120000 characters"),
    ({"x": [{}] * 20_000}, "20000 values"),
]
FINE: list[dict[str, Any]] = [
    many(schema_size.MAX_IN_OBJECT),
    either(1000),
    {"allOf": [either(8), either(8)]},
    {"allOf": [either(1000)]},
    {"enum": list(range(1000))},
    {"type": "integer", "multipleOf": 10_000_000},
    {"type": "number", "multipleOf": 0.01},
    {"default": list(range(5000)), "examples": [list(range(5000))]},
    # what has the name of a keyword among properties is none
    {"properties": {"enum": many(300), "const": many(300), "pattern": {"type": "string"}, "maxLength": {"const": 1}}},
    {"multipleOf": "x", "allOf": 3, "enum": {}, "properties": [], "patternProperties": None},
]


@pytest.mark.parametrize(("schema", "said"), LIMITS, ids=[said for _, said in LIMITS])
def test_a_schema_that_would_take_long_is_refused_by_its_size(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        check_schema(schema, "field")
    assert caught.value.param == "field"


def test_schemas_within_the_limits_pass() -> None:
    for schema in FINE:
        check_schema(schema, "field")


def test_counting_ends_where_a_schema_is_too_big_already() -> None:
    assert measure({"x": [{}] * 100_000}).nodes <= schema_size.MAX_NODES + 1
    assert measure({"const": [0] * 100_000}).enum <= schema_size.MAX_ENUM_VALUES + 1
    assert measure({}) == Size(nodes=1)


def test_tools_are_measured_together_too() -> None:
    def tools(count: int) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": f"f{n}", "parameters": many(390)}} for n in range(count)]

    check_tools(tools(5))
    with pytest.raises(InvalidRequestError, match="all tools may have 2000 properties") as caught:
        check_tools(tools(6))
    assert caught.value.param == "tools"
    check_tools([{"type": "function", "function": {"name": "f", "parameters": None}}])


async def test_what_is_too_big_is_refused_wherever_a_schema_may_stand(ring: Ring) -> None:
    slow = {"type": "integer", "multipleOf": 99_999}
    lark = 'start: A | b\nA: "%json"\nb: %json '  # the first is text, and behind it is no schema
    await refused(ring, "guided_json", guided_json=slow)
    await refused(ring, "guided_grammar", guided_grammar='start: %json {"type": "integer", "multipleOf": 99999}')
    await refused(ring, "guided_grammar", guided_grammar=lark + '{"type": "integer"}')
    await refused(ring, "guided_grammar", guided_grammar="start: %json " + '{"not":' * 1100 + "{}" + "}" * 1100)
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": slow}}}
    await refused(ring, "tools[0]", tools=[{"type": "function", "function": function}], tool_choice="required")
    await whole(ring, guided_grammar='start: "a" %json {"type": "integer", "multipleOf": 3}')
    await refused(ring, "guided_json", guided_json='"' + " " * 1_000_001)
    await still_serves(ring)


async def test_tokens_that_cannot_begin_what_a_grammar_wants_are_refused(ring: Ring) -> None:
    ids = {piece: ring.replica.token_id(piece.encode()) for piece in ("y", "e", "n", "one ")}
    end = ring.replica.end_token
    for wrong in ([ids["e"]], [ids["one "], end], [end]):
        error = await refused(ring, "allowed_token_ids", guided_choice=["yes", "no"], allowed_token_ids=wrong)
        assert "none of them can begin what guided_choice wants" in error["message"]
    assert not ring.replica.requests
    await whole(ring, guided_choice=["yes", "no"], allowed_token_ids=[ids["e"], ids["n"]])
    await whole(ring, guided_choice=["one two"], allowed_token_ids=[ids["one "]])
    await whole(ring, guided_regex="a?", allowed_token_ids=[end])


@pytest.fixture
def trial(tmp_path: Path) -> GrammarTrial:
    path = write_tiny_model(tmp_path)
    return GrammarTrial(ModelCard.load(path), Vocabulary.load(path))


async def test_however_many_come_with_a_grammar_it_is_tried_once(
    trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    go = threading.Event()

    def count(grammar: Grammar) -> str:
        go.wait(60)
        tried.append(grammar.source)
        return "no" if grammar.source == "bad" else ""

    monkeypatch.setattr(trial, "_try", count)
    outcomes: list[str] = []

    async def admit(source: str) -> None:
        try:
            await trial.admit(Grammar(kind="regex", source=source, field="f"))
            outcomes.append("admitted")
        except InvalidRequestError as error:
            outcomes.append(error.message)

    async with anyio.create_task_group() as tasks:
        for source in ["good", "bad"] * 20:
            tasks.start_soon(admit, source)
        await anyio.wait_all_tasks_blocked()
        go.set()
    await admit("good")
    await admit("bad")
    assert sorted(tried) == ["bad", "good"]
    assert (outcomes.count("admitted"), outcomes.count("no")) == (21, 21)


async def test_who_tries_may_leave_and_another_goes_on(trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, go = threading.Event(), threading.Event()
    first = Grammar(kind="regex", source="first")
    good = Grammar(kind="regex", source="good")

    def slow(grammar: Grammar) -> str:
        if grammar is first:
            busy.set()
            go.wait(60)
        return ""

    monkeypatch.setattr(trial, "_try", slow)
    passed: list[str] = []

    async def admit(name: str, grammar: Grammar, scope: anyio.CancelScope) -> None:
        with scope:
            await trial.admit(grammar)
            passed.append(name)

    leaver, stayer, holder = anyio.CancelScope(), anyio.CancelScope(), anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(admit, "first", first, holder)
        await anyio.to_thread.run_sync(busy.wait, 60)
        tasks.start_soon(admit, "leaver", good, leaver)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(admit, "stayer", good, stayer)
        await anyio.wait_all_tasks_blocked()
        leaver.cancel()
        await anyio.wait_all_tasks_blocked()
        go.set()
    assert sorted(passed) == ["first", "stayer"]


async def test_a_short_grammar_does_not_wait_for_a_long_one(
    trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, go = threading.Event(), threading.Event()
    ended: list[bool] = []

    def slow(grammar: Grammar) -> str:
        if len(grammar.source) > 1000:
            busy.set()
            ended.append(go.wait(30))
        return ""

    monkeypatch.setattr(trial, "_try", slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(trial.admit, Grammar(kind="json_schema", source="x" * 10_000))
        await anyio.to_thread.run_sync(busy.wait, 60)
        await trial.admit(Grammar(kind="json_schema", source="{}"))
        assert not ended
        go.set()


async def test_only_the_last_outcomes_are_kept(trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_try", lambda _: "")
    monkeypatch.setattr("gateway.edge.grammar_trial._MAX_KEPT", 3)
    for number in range(10):
        await trial.admit(Grammar(kind="regex", source=str(number)))
    assert len(trial._outcomes) == 3
