"""Which parts of a JSON schema no grammar here enforces, by place, and a rewriting that leaves fewer of them.

A keyword that says nothing where it stands (`then` without `if`, `uniqueItems: false`) is dropped; `not` anything is
the schema that nothing satisfies, which grammars know as `false`. Others are named: a strict schema is refused for
them, one that is not strict is followed without them and its answer says so in a header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gateway.edge.schema.finite import resolve

FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
_NOTHING: tuple[Any, ...] = (True, {})  # schemas that let all through
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties")
_ONES = ("items", "additionalProperties", "additionalItems")
_DEFINED = ("$defs", "definitions")


def _never(_value: Any, _schema: dict[str, Any]) -> bool:
    return False


def _says_all(value: Any, _schema: dict[str, Any]) -> bool:
    return value in _NOTHING


def _empty(value: Any, _schema: dict[str, Any]) -> bool:
    return not value


# Keywords that are not enforced, and when they say nothing anyway.
_KEYWORDS: dict[str, Callable[[Any, dict[str, Any]], bool]] = {
    "not": lambda value, _: value is False,
    "if": lambda _, schema: "then" not in schema and "else" not in schema,
    "then": lambda value, schema: "if" not in schema or value in _NOTHING,
    "else": lambda value, schema: "if" not in schema or value in _NOTHING,
    "contains": lambda _, schema: schema.get("minContains") == 0 and "maxContains" not in schema,
    "minContains": lambda _, schema: "contains" not in schema or schema["minContains"] == 0,
    "maxContains": lambda _, schema: "contains" not in schema,
    "uniqueItems": _empty,
    "propertyNames": _says_all,
    "unevaluatedItems": _says_all,
    "unevaluatedProperties": _says_all,
    "dependentSchemas": _empty,
    "dependentRequired": _empty,
    "dependencies": _empty,
    "$dynamicRef": _never,
    "$recursiveRef": _never,
}


def settled(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without keywords that say nothing, and with `not` anything as the schema `false`."""
    found = _settled(schema)
    return found if isinstance(found, dict) else {"anyOf": [found]}


def _settled(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_settled(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "not" in schema and schema["not"] in _NOTHING:
        return False
    kept = {key: value for key, value in schema.items() if key not in _KEYWORDS or not _KEYWORDS[key](value, schema)}
    for key in kept.keys() & {*_LISTS, *_ONES}:
        kept[key] = _settled(kept[key])
    for key in kept.keys() & {*_MAPS, *_DEFINED}:
        if isinstance(kept[key], dict):
            kept[key] = {name: _settled(one) for name, one in kept[key].items()}
    return kept


def unenforced(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the places of what is not enforced, as JSON pointers; of definitions only those that are referred to."""
    seen: set[str] = set()
    stack: list[tuple[str, Any]] = [("", schema)]
    while stack:
        at, node = stack.pop()
        if not isinstance(node, dict):
            continue
        yield from (f"{at}/{key}" for key in node if key in _KEYWORDS and not _KEYWORDS[key](node[key], node))
        if isinstance(node.get("format"), str) and node["format"] not in FORMATS and _may_be_text(node):
            yield f"{at}/format ({node['format'][:40]!r})"
        inner = [(f"{at}/{key}", node[key]) for key in _ONES if key in node]
        for key in (*_LISTS, *_ONES):
            if isinstance(node.get(key), list):
                inner += [(f"{at}/{key}/{n}", one) for n, one in enumerate(node[key])]
        for key in _MAPS:
            if isinstance(node.get(key), dict):
                inner += [(f"{at}/{key}/{_escaped(name)}", one) for name, one in node[key].items()]
        to = node.get("$ref")
        if isinstance(to, str) and to not in seen:
            seen.add(to)
            inner.append((to.removeprefix("#"), resolve(schema, to)))
        stack += reversed(inner)


def _may_be_text(node: dict[str, Any]) -> bool:
    kinds = node.get("type", "string")
    return "string" in kinds if isinstance(kinds, list) else kinds == "string"


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
