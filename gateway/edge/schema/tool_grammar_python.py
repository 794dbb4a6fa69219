"""Grammars of calls that are written as in Python: OLMo 3's. Values are JSON of their own schemas, texts too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway.edge.schema.custom_lark import nested_input
from gateway.edge.schema.lark import Calls, Opening, any_of, quote, repeated, tag_of
from gateway.edge.schema.prose import without_prose
from gateway.edge.schema.unenforced import settled
from gateway.postprocess.tools.free_input import NAME
from wire.model_card import ModelCard

_WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MAX_FREE = 32


def olmo3(functions: Sequence[dict[str, Any]], card: ModelCard, many: bool) -> Calls:
    """A line for each call, all between one pair of tags."""
    begin, end = tag_of("<function_calls>", card), tag_of("</function_calls>", card)
    calls = [f'call_{at}: {quote(one["name"] + "(")} args_{at} ")"' for at, one in enumerate(functions)]
    rules = [any_of(len(calls)), *calls]
    for at, function in enumerate(functions):
        rules += _free_text(at, function) if "format" in function else _arguments(at, function)
    free = f"any: %json {json.dumps({'x-guidance': _WRITTEN})}"
    rules += [r"KEY: /[A-Za-z_][A-Za-z0-9_]{0,63}/", 'free: KEY "=" any', free]
    return Calls((Opening(begin, f"{repeated(chr(10), 'call', many)} {end}"),), rules, in_sections=True)


def _free_text(at: int, function: dict[str, Any]) -> list[str]:
    text = nested_input(function["format"])
    return [f"args_{at}: {quote(NAME + '=' + chr(34))} text_{at} {quote(chr(34))}", f"text_{at}: {text}"]


def _arguments(at: int, function: dict[str, Any]) -> list[str]:
    """Return the rules of a function's arguments in the order of their schema, commas between those that come."""
    root = settled(without_prose(function.get("parameters") or {"properties": {}, "additionalProperties": False}))
    properties, required = root.get("properties"), root.get("required")
    # What is of a wrong kind here is refused with the schema, which is tried by itself.
    properties = properties if isinstance(properties, dict) else {}
    needed = [key for key in required if isinstance(key, str)] if isinstance(required, list) else []
    keys = list(dict.fromkeys((*properties, *needed)))
    if not keys:
        some = f'(free (", " free){{0,{_MAX_FREE - 1}}})?' if root.get("additionalProperties") is not False else '""'
        return [f"args_{at}: {some}"]
    shared = {word: root[word] for word in ("$defs", "definitions") if word in root}
    lenient = {} if function.get("strict") else {"lenient": True}
    rules = [f"args_{at}: first_{at}_0", f'first_{at}_{len(keys)}: ""', f'then_{at}_{len(keys)}: ""']
    for number, key in enumerate(keys):
        schema = properties.get(key, {})
        schema = schema if isinstance(schema, dict) else {}
        place, after = f"{at}_{number}", f"{at}_{number + 1}"
        inner = json.dumps({**shared, **schema, "x-guidance": {**_WRITTEN, **lenient}})
        rules += [f"one_{place}: {quote(key + '=')} value_{place}", f"value_{place}: %json {inner}"]
        if key in needed:
            rules += [f"first_{place}: one_{place} then_{after}", f'then_{place}: ", " one_{place} then_{after}']
        else:
            rules += [f"first_{place}: one_{place} then_{after} | first_{after}"]
            rules += [f'then_{place}: (", " one_{place})? then_{after}']
    return rules
