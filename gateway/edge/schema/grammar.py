"""Formats of an answer, inwards: response_format, text.format and the extensions of open servers -> wire's Grammar.

A schema is measured before anything is compiled, so that one made to hurt is refused for its size, and a schema that
nothing finite can satisfy for what it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gateway.edge.schema.body import check_depth
from gateway.edge.schema.finite import has_finite_value
from gateway.edge.schema.kinds import missing, must_be, shown
from gateway.edge.schema.sampling import SamplingFields, StructuredOutputs, fail
from gateway.edge.schema.schema_size import MAX_PATTERN, MAX_TEXT, TOOLS_FACTOR, Size, measure
from gateway.edge.schema.unenforced import settled, unenforced
from wire.messages import Grammar, SamplingParams

MAX_CHOICES = 1_000
MAX_SOURCE = 8_192  # characters of a grammar
MAX_JSON = 1_000_000  # characters of a schema given as text
MAX_PLACE = 120  # characters of a place that is named
_MAX_PLACES = 8
_JSON = re.compile(r"%json\s*")
_DECODER = json.JSONDecoder()


def bind_format(
    sampling: SamplingParams, body: SamplingFields, given: dict[str, Any] | None, param: str
) -> SamplingParams:
    """Return the sampling with the grammar that a body asks for; one that stands in several fields is one.

    Raises InvalidRequestError naming the field.
    """
    grammars = [grammar for grammar in (_from_format(given, param), *_from_extensions(body)) if grammar is not None]
    if not grammars:
        return sampling
    first, *others = sorted(grammars, key=lambda grammar: grammar.lenient)
    for other in others:  # guidance writes vLLM's new field and its old one
        if (other.kind, other.source) != (first.kind, first.source):
            raise fail(other.field, f"cannot be given together with {first.field}.")
    return msgspec.structs.replace(sampling, grammar=first)


def _from_format(given: dict[str, Any] | None, param: str) -> Grammar | None:
    """Read OpenAI's field, in the chat shape and the flat one of responses."""
    if given is None:
        return None
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = given.get("schema")  # llama.cpp's way to give one
        return Grammar(kind="json_object", field=param) if schema is None else _schema(schema, f"{param}.schema")
    if kind != "json_schema":
        raise fail(f"{param}.type", f"must be 'text', 'json_object' or 'json_schema', not {shown(kind)}.")
    is_flat = "schema" in given or (param != "response_format" and "json_schema" not in given)
    inner, where = (given, param) if is_flat else (given.get("json_schema"), f"{param}.json_schema")
    if not isinstance(inner, dict) or "schema" not in inner:
        raise missing(f"{where}.schema", "a JSON schema, an object")
    if not isinstance(inner.get("strict"), bool | None):
        raise must_be(f"{where}.strict", "true or false", inner["strict"])
    return _schema(inner["schema"], f"{where}.schema", lenient=not inner.get("strict"))


def _from_extensions(body: SamplingFields) -> Iterator[Grammar]:
    """Read vLLM's fields, the new one and the old ones; their schemas are strict."""
    new = body.structured_outputs or StructuredOutputs()
    at = "structured_outputs."
    for prefix, form in ((at, new), ("guided_", body.guided())):
        if form.json is not None:
            yield _schema(form.json, f"{prefix}json")
        if form.json_object:
            yield Grammar(kind="json_object", field=f"{prefix}json_object")
        if form.regex is not None:
            yield _text("regex", form.regex, f"{prefix}regex", MAX_PATTERN)
        if form.grammar is not None:
            yield _text("lark", form.grammar, f"{prefix}grammar", MAX_SOURCE)
        if form.choice is not None:
            yield _choice(form.choice, f"{prefix}choice")


def _text(kind: Any, source: str, param: str, limit: int) -> Grammar:
    if not source:
        raise fail(param, "is empty.")
    if len(source) > limit:
        raise fail(param, f"may have {limit} characters at most, not {len(source)}.")
    return Grammar(kind=kind, source=source, field=param)


def _choice(choices: list[str], param: str) -> Grammar:
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise fail(param, f"must hold 1 to {MAX_CHOICES} texts, not {len(choices)}.")
    if not all(choices):
        raise fail(param, "an empty text is no choice.")
    if sum(map(len, choices)) > MAX_TEXT:
        raise fail(param, f"may have {MAX_TEXT} characters at most in all.")
    return Grammar(kind="choice", source=msgspec.json.encode(choices).decode(), field=param)


def _schema(schema: Any, param: str, *, lenient: bool = False) -> Grammar:
    """Take a schema as it is; `check_schema` looks into it, away from the event loop."""
    if isinstance(schema, str):  # vLLM takes the JSON text as well
        if len(schema) > MAX_JSON:
            raise fail(param, f"may have {MAX_JSON} characters at most, not {len(schema)}.")
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError):
            raise fail(param, "is not valid JSON.") from None
    if not isinstance(schema, dict):
        raise must_be(param, "a JSON schema, an object", schema)
    schema = {key: value for key, value in schema.items() if key != "x-guidance"}  # the compiler's own options
    check_depth(schema, param)
    return Grammar(
        kind="json_schema", source=msgspec.json.encode(settled(schema)).decode(), lenient=lenient, field=param
    )


def check_schema(schema: dict[str, Any], param: str, *, lenient: bool = False) -> None:
    """Refuse a schema that is too big to be compiled in good time, or that nothing can satisfy; takes some 10 ms.

    One that is not `lenient` is refused for what cannot be enforced, too.
    """
    measure(schema).check(param)
    place = None if lenient else next(unenforced(schema), None)
    if place is not None:
        raise fail(param, f"{place[:MAX_PLACE]} cannot be enforced; leave it out, or do not ask for strict: true.")
    if not has_finite_value(schema, param):
        raise fail(param, "no finite value can satisfy it; give a recursion a way to end.")


def passed_over(grammar: Grammar) -> str:
    """Return what of a schema that is not strict is not enforced, for a header of the answer; nothing if all is."""
    if grammar.kind != "json_schema" or not grammar.lenient:
        return ""
    places = [ascii(place)[1:-1][:MAX_PLACE] for place in unenforced(msgspec.json.decode(grammar.source))]
    more = f" and {len(places) - _MAX_PLACES} more" if len(places) > _MAX_PLACES else ""
    return f"{grammar.field}: not enforced: {', '.join(places[:_MAX_PLACES])}{more}" if places else ""


def check_tools(tools: Sequence[dict[str, Any]]) -> None:
    """Refuse tools whose schemas are too big together, each by itself being small enough."""
    total = Size()
    for at, tool in enumerate(tools):
        size = measure(tool["function"].get("parameters") or {})
        size.check(f"tools[{at}]")
        total.add(size)
    total.check("tools", TOOLS_FACTOR)


def check_lark(source: str, param: str) -> None:
    """Refuse a grammar that holds a schema which `check_schema` refuses."""
    for place in _JSON.finditer(source):
        try:
            schema, _ = _DECODER.raw_decode(source, place.end())
        except (ValueError, RecursionError):
            raise fail(param, "%json needs a JSON schema behind it.") from None
        if isinstance(schema, dict):
            check_schema(schema, param)
