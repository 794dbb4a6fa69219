"""Grammars of tool calls, in llguidance's Lark dialect, one for each style that models write calls in.

A call that must come is the whole answer. Under `auto` the answer is free until a call begins; from there on it is held
to the functions' names and, for functions that say `strict`, to their schemas.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Sequence
from typing import Any

from gateway.edge.schema.prose import without_prose
from wire.messages import Grammar
from wire.model_card import ModelCard

MAX_CALLS = 32
_WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}


class Forced(enum.Enum):
    """When a grammar holds: for the whole answer, or from where a call begins."""

    ALWAYS = "always"
    ONCE_BEGUN = "once begun"


def tool_grammar(functions: Sequence[dict[str, Any]], card: ModelCard, forced: Forced, *, many: bool) -> Grammar | None:
    """Return the grammar of calls of these functions, or None where none is needed."""
    strict = [bool(function.get("strict")) for function in functions]
    if forced is Forced.ONCE_BEGUN and not any(strict):
        return None
    rules = _STYLES[card.tool_style](functions, card, forced, many)
    if rules is None:
        return None
    arguments = [f"args_{at}: %json {_schema(function)}" for at, function in enumerate(functions)]
    source = "\n".join(["%llguidance {}", *rules, *arguments]) + "\n"
    return Grammar(kind="lark", source=source, lenient=not any(strict))


def argument_schemas(tools: Sequence[dict[str, Any]]) -> list[Grammar]:
    """Return the schemas of the arguments, each by itself: a trial of the whole grammar may not come to all of them."""
    return [
        Grammar(
            kind="json_schema",
            source=_schema(tool["function"]),
            lenient=not tool["function"].get("strict"),
            field=f"tools[{at}]",
        )
        for at, tool in enumerate(tools)
    ]


def _schema(function: dict[str, Any]) -> str:
    schema = function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}
    lenient = {} if function.get("strict") else {"lenient": True}
    return json.dumps({**without_prose(schema), "x-guidance": {**_WRITTEN, **lenient}})


def _quote(text: str) -> str:
    return json.dumps(text)


def _calls(functions: Sequence[dict[str, Any]], key: str) -> list[str]:
    """Return the rule `call`: the object of any of the functions."""
    heads = [_quote(f'{{"name": {json.dumps(function["name"])}, "{key}": ') for function in functions]
    options = [f'{head} args_{at} "}}"' for at, head in enumerate(heads)]
    return ["call: " + " | ".join(f"call_{at}" for at in range(len(options)))] + [
        f"call_{at}: {option}" for at, option in enumerate(options)
    ]


def _more(separator: str, item: str, many: bool) -> str:
    return f"{item} ({_quote(separator)} {item}){{0,{MAX_CALLS - 1}}}" if many else item


def _hermes(functions: Sequence[dict[str, Any]], card: ModelCard, forced: Forced, many: bool) -> list[str]:
    calls = _calls(functions, "arguments")
    begin, end = _tag("<tool_call>", card), _tag("</tool_call>", card)
    block = f'block: {{}} "\\n" call "\\n" {end}'
    if forced is Forced.ALWAYS:
        return [f"start: {_more(chr(10), 'block', many)}", block.format(begin), *calls]
    repeat = f"{{0,{MAX_CALLS}}}" if many else "?"
    rules = [f"start: block{repeat} TEXT", r"TEXT: /(.|\n)*/", *calls]
    if "<tool_call>" in card.tool_tags:  # a control token is no part of any text
        return [*rules, block.format(f"TEXT {begin}")]
    return [*rules, block.format("trigger"), f"trigger[lazy]: TEXT {begin}"]


def _llama3(functions: Sequence[dict[str, Any]], card: ModelCard, forced: Forced, many: bool) -> list[str] | None:
    """One call: the templates take back no more."""
    del card, many
    return None if forced is Forced.ONCE_BEGUN else ["start: call", *_calls(functions, "parameters")]


def _mistral(functions: Sequence[dict[str, Any]], card: ModelCard, forced: Forced, many: bool) -> list[str] | None:
    if forced is Forced.ONCE_BEGUN:
        return None
    tag = _tag("[TOOL_CALLS]", card)
    if "[ARGS]" in card.tool_tags:
        heads = [f"{_quote(function['name'])} {_tag('[ARGS]', card)}" for function in functions]
        calls = [f"call_{at}: {tag} {head} args_{at}" for at, head in enumerate(heads)]
        return [f"start: call{{1,{MAX_CALLS if many else 1}}}", _any(len(calls)), *calls]
    return [f'start: {tag} "[" {_more(", ", "call", many)} "]"', *_calls(functions, "arguments")]


def _plain(functions: Sequence[dict[str, Any]], card: ModelCard, forced: Forced, many: bool) -> list[str] | None:
    del card
    if forced is Forced.ONCE_BEGUN:
        return None
    listed = f' | "[" {_more(", ", "call", True)} "]"' if many else ""
    return [f"start: call{listed}", *_calls(functions, "arguments")]


def _any(count: int) -> str:
    return "call: " + " | ".join(f"call_{at}" for at in range(count))


def _tag(text: str, card: ModelCard) -> str:
    """Write a tag: by its number if it is a control token, which has no bytes."""
    token_id = card.tool_tags.get(text)
    return _quote(text) if token_id is None else f"<[{token_id}]>"


_STYLES: dict[str, Callable[[Sequence[dict[str, Any]], ModelCard, Forced, bool], list[str] | None]] = {
    "hermes": _hermes,
    "llama3": _llama3,
    "mistral": _mistral,
    "json": _plain,
}
