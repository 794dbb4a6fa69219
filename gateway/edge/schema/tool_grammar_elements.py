"""Grammars of calls whose arguments are elements: Qwen3-Coder's, Seed's, MiniMax' and GLM's.

Values that are no texts are JSON of their own schema; texts end with their closing tag. What a schema says of the
inside of a text cannot be held to here, so a strict function that says so is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from gateway.edge.schema.custom_lark import nested
from gateway.edge.schema.lark import TEXT, Calls, Opening, any_of, quote, tag_of
from gateway.edge.schema.prose import without_prose
from gateway.edge.schema.sampling import fail
from gateway.edge.schema.unenforced import settled
from gateway.postprocess.tools.element_reader import kinds_of, resolved
from wire.messages import Grammar
from wire.model_card import ModelCard

T = TypeVar("T")

_OF_TEXTS = ("pattern", "format", "minLength", "maxLength")
_WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class _Written(NamedTuple):
    """How a style writes an element, as Lark: before the name, between name and value, behind the value."""

    before: str
    between: str
    behind: str


def qwen3_coder(functions: Sequence[dict[str, Any]], card: ModelCard, many: bool) -> Calls:
    """Names stand in the tags; the model leaves the outer one out now and then."""
    del many
    return _coder(functions, tag_of("<tool_call>", card), tag_of("</tool_call>", card))


def seed_oss(functions: Sequence[dict[str, Any]], card: ModelCard, many: bool) -> Calls:
    """As Qwen3-Coder's, between tags of its own."""
    del many
    return _coder(functions, tag_of("<seed:tool_call>", card), tag_of("</seed:tool_call>", card))


def _coder(functions: Sequence[dict[str, Any]], begin: str, end: str) -> Calls:
    heads = [quote(f"{one['name']}>\n") for one in functions]
    calls = [f'call_{at}: {head} args_{at} "</function>"' for at, head in enumerate(heads)]
    written = _Written(quote("<parameter="), quote(">\n"), quote("\n</parameter>\n"))
    openings = Opening(begin, f'"\\n<function=" call "\\n" {end}'), Opening(quote("<function="), "call")
    return Calls(openings, [any_of(len(calls)), *calls, *_arguments(functions, written)], separator="\n")


def minimax_m2(functions: Sequence[dict[str, Any]], card: ModelCard, many: bool) -> Calls:
    """Names stand in the tags as attributes; each call has outer tags of its own, which the model may share."""
    del many
    begin, end = tag_of("<minimax:tool_call>", card), tag_of("</minimax:tool_call>", card)
    head = '<invoke name="'
    heads = [quote(f'{one["name"]}">\n') for one in functions]
    calls = [f'call_{at}: {name} args_{at} "</invoke>"' for at, name in enumerate(heads)]
    written = _Written(quote('<parameter name="'), quote('">'), quote("</parameter>\n"))
    openings = Opening(begin, f'{quote(chr(10) + head)} call "\\n" {end}'), Opening(quote(head), "call")
    return Calls(openings, [any_of(len(calls)), *calls, *_arguments(functions, written)], separator="\n")


def glm45(functions: Sequence[dict[str, Any]], card: ModelCard, many: bool) -> Calls:
    """Names are elements too."""
    del many
    begin, end = tag_of("<tool_call>", card), tag_of("</tool_call>", card)
    heads = [quote(f"{one['name']}\n") for one in functions]
    calls = [f"call_{at}: {head} args_{at}" for at, head in enumerate(heads)]
    between = f'{tag_of("</arg_key>", card)} "\\n" {tag_of("<arg_value>", card)}'
    # The line break is a rule of its own: a text must end with its tag, be that a control token or not.
    written = _Written(tag_of("<arg_key>", card), between, tag_of("</arg_value>", card))
    arguments = [rule.replace(" END", ' "\\n"') for rule in _arguments(functions, written, line="END")]
    return Calls((Opening(begin, f"call {end}"),), [any_of(len(calls)), *calls, *arguments], separator="\n")


def _arguments(functions: Sequence[dict[str, Any]], written: _Written, line: str = "") -> list[str]:
    """Return a rule `args_N` for each function, and all that these need."""
    text = "text: TEXT " if written.behind.startswith("<[") else "text[lazy]: TEXT "
    rules = [f"{text}{written.behind}", TEXT, r"KEY: /[A-Za-z0-9_.-]{1,64}/"]
    rules += [f"free: {written.before} KEY {written.between} text {line}".rstrip()]
    for at, function in enumerate(functions):
        root = settled(without_prose(function.get("parameters") or {"properties": {}, "additionalProperties": False}))
        # What is of a wrong kind here is refused with the schema, which is tried by itself.
        needed = [key for key in _kind(root.get("required"), list) if isinstance(key, str)]
        elements, properties = [], _kind(root.get("properties"), dict)
        for number, key in enumerate(dict.fromkeys((*properties, *needed))):
            name = f"args_{at}_{number}"
            head = f"{written.before} {quote(key)} {written.between}"
            value, more = _value(name, properties.get(key, {}), root, function, key, written)
            rules += [f"{name}: {head} {value} {line}".rstrip(), *more]
            elements.append(name if key in needed else f"{name}?")
        if not elements and root.get("additionalProperties") is not False:
            elements.append("free{0,32}")
        rules.append(f"args_{at}: {' '.join(elements) or quote('')}")
    return rules


def _kind(value: Any, kind: type[T]) -> T:
    return value if isinstance(value, kind) else kind()


def _value(
    name: str, schema: Any, root: dict[str, Any], function: dict[str, Any], key: str, written: _Written
) -> tuple[str, list[str]]:
    """Return what a value is, with its end, and the rules that this needs."""
    if "format" in function:
        form: Grammar = function["format"]
        return f"{name}_text {written.behind}", [f"{name}_text: {nested(form.kind, form.source, in_json=False)}"]
    found = resolved(schema, root)
    kinds = kinds_of(found)
    values = found.get("enum", [found["const"]] if "const" in found else None)
    if isinstance(values, list) and values:
        texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
        return f"({' | '.join(map(quote, texts))}) {written.behind}", []
    if kinds is not None and "string" not in kinds:
        definitions = {word: root[word] for word in ("$defs", "definitions") if word in root}
        lenient = {} if function.get("strict") else {"lenient": True}
        inner = json.dumps({**definitions, **schema, "x-guidance": {**_WRITTEN, **lenient}})
        return f"{name}_json {written.behind}", [f"{name}_json: %json {inner}"]
    wanted = [word for word in _OF_TEXTS if word in found]
    if wanted and function.get("strict"):
        raise fail(
            "tools",
            f"{function['name']}: {wanted[0]} of {key!r} cannot be enforced in the way this model writes calls.",
        )
    return "text", []
