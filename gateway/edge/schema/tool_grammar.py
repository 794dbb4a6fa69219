"""Grammars of tool calls, in llguidance's Lark dialect, one for each style that models write calls in.

A call that must come is the whole answer. Under `auto` the answer is free until a call begins; from there on it is held
to the functions' names and, for functions that say `strict`, to their schemas.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Sequence
from typing import Any

from gateway.edge.schema.custom_lark import nested_input
from gateway.edge.schema.lark import Calls, Opening, any_of, quote, repeated, tag_of
from gateway.edge.schema.prose import without_prose
from gateway.edge.schema.quoted_regex import QuotingError
from gateway.edge.schema.sampling import fail
from gateway.edge.schema.tool_grammar_elements import glm45, minimax_m2, qwen3_coder, seed_oss
from gateway.edge.schema.tool_grammar_python import olmo3
from gateway.edge.schema.tool_grammar_tags import deepseek_v3, deepseek_v31, kimi_k2
from gateway.edge.schema.unenforced import settled
from gateway.postprocess.tools.free_input import NAME
from wire.messages import Grammar
from wire.model_card import ModelCard
from wire.tool_style import HARMONY

_WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_ELEMENTS = frozenset({"qwen3_coder", "seed_oss", "minimax_m2", "glm45"})
_OWN_ARGUMENTS = _ELEMENTS | {"olmo3"}  # what arguments are is told by their own rules


class Forced(enum.Enum):
    """When a grammar holds: for the whole answer, or from where a call begins."""

    ALWAYS = "always"
    ONCE_BEGUN = "once begun"


Functions = Sequence[dict[str, Any]]


def tool_grammar(functions: Functions, card: ModelCard, forced: Forced, *, many: bool) -> Grammar | None:
    """Return the grammar of calls of these functions, or None where none is needed.

    A function with a `format` takes free text: its argument `input` is what this grammar says.
    """
    strict = [bool(function.get("strict")) or "format" in function for function in functions]
    if forced is Forced.ONCE_BEGUN and not any(strict):
        return None
    try:
        rules = _rules(functions, card, forced, many)
        if rules is None:
            return None
        if card.tool_style not in _OWN_ARGUMENTS:
            rules = [*rules, *(_arguments(at, function) for at, function in enumerate(functions))]
    except QuotingError as error:
        if forced is Forced.ONCE_BEGUN:
            return None
        raise fail(error.field, f"{error}.") from None
    return Grammar(kind="lark", source="\n".join(["%llguidance {}", *rules]) + "\n", lenient=not any(strict))


def left_free(functions: Functions, card: ModelCard) -> list[str]:
    """Return what of tools that may be called is not enforced, for a header of the answer."""
    if card.tool_style not in _UNMARKED or not any(function.get("strict") for function in functions):
        return []
    return ["tools: not enforced unless a call must come: strict"]


def _arguments(at: int, function: dict[str, Any]) -> str:
    """Return the rule of a function's arguments."""
    if "format" not in function:
        return f"args_{at}: %json {_schema(function)}"
    text = nested_input(function["format"])
    head = quote(f'{{"{NAME}": "')
    return f"args_{at}: {head} text_{at} {quote(chr(34) + '}')}\ntext_{at}: {text}"


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
    return json.dumps({**settled(without_prose(schema)), "x-guidance": {**_WRITTEN, **lenient}})


def _calls(functions: Functions, key: str) -> list[str]:
    """Return the rule `call`: the object of any of the functions."""
    heads = [quote(f'{{"name": {json.dumps(function["name"])}, "{key}": ') for function in functions]
    options = [f'{head} args_{at} "}}"' for at, head in enumerate(heads)]
    return ["call: " + " | ".join(f"call_{at}" for at in range(len(options)))] + [
        f"call_{at}: {option}" for at, option in enumerate(options)
    ]


def _hermes(functions: Functions, card: ModelCard, many: bool) -> Calls:
    del many
    begin, end = tag_of("<tool_call>", card), tag_of("</tool_call>", card)
    return Calls((Opening(begin, f'"\\n" call "\\n" {end}'),), _calls(functions, "arguments"), separator="\n")


def _mistral(functions: Functions, card: ModelCard, many: bool) -> Calls:
    tag = tag_of("[TOOL_CALLS]", card)
    if "[ARGS]" in card.tool_tags:
        heads = [f"{quote(function['name'])} {tag_of('[ARGS]', card)}" for function in functions]
        calls = [f"call_{at}: {head} args_{at}" for at, head in enumerate(heads)]
        return Calls((Opening(tag, "call"),), [any_of(len(calls)), *calls])
    rest = f'"[" {repeated(", ", "call", many)} "]"'
    return Calls((Opening(tag, rest),), _calls(functions, "arguments"), in_sections=True)


def _bare(style: str, functions: Functions, many: bool) -> list[str]:
    """Return the rules of calls without a marker: JSON is the whole answer. Llama's templates take back one only."""
    if style == "llama3":
        return ["start: call", *_calls(functions, "parameters")]
    listed = f' | "[" {repeated(", ", "call", True)} "]"' if many else ""
    return [f"start: call{listed}", *_calls(functions, "arguments")]


def _harmony(functions: Functions, card: ModelCard) -> list[str]:
    """Return the rules of one call, from its name on: the desk has begun the header, and a call ends an answer."""
    frame = f'{tag_of("<|constrain|>", card)} "json" {tag_of("<|message|>", card)}'
    calls = [
        f"call_{at}: {quote('.' + function['name'] + ' ')} {frame} args_{at}" for at, function in enumerate(functions)
    ]
    return ["start: call", any_of(len(calls)), *calls]


_UNMARKED = frozenset({"llama3", "json", HARMONY})
_STYLES: dict[str, Callable[[Functions, ModelCard, bool], Calls]] = {
    "hermes": _hermes,
    "mistral": _mistral,
    "qwen3_coder": qwen3_coder,
    "seed_oss": seed_oss,
    "minimax_m2": minimax_m2,
    "glm45": glm45,
    "deepseek_v3": deepseek_v3,
    "deepseek_v31": deepseek_v31,
    "kimi_k2": kimi_k2,
    "olmo3": olmo3,
}


def _rules(functions: Functions, card: ModelCard, forced: Forced, many: bool) -> list[str] | None:
    """Return the rules of calls in the style of a model, or None where nothing marks their beginning."""
    if card.tool_style in _UNMARKED and forced is Forced.ONCE_BEGUN:
        return None
    if card.tool_style == HARMONY:
        return _harmony(functions, card)
    if card.tool_style in _UNMARKED:
        return _bare(card.tool_style, functions, many)
    if forced is Forced.ALWAYS:
        return _STYLES[card.tool_style](functions, card, many).always(many=many)
    if card.tool_style in _ELEMENTS:  # a strict text there is held to what it can be, and not refused for the rest
        functions = [{**function, "strict": False} for function in functions]
    return _STYLES[card.tool_style](functions, card, many).once_begun(many=many)
