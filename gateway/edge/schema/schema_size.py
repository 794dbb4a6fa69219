"""How long a JSON schema takes to compile, estimated from its contents, so that a malicious one is refused uncompiled.

What compiling costs was measured: properties of one object with their square, every combination of what `allOf` joins,
patterns by their length, `multipleOf` by the states of its remainder. Within all limits it is some 50 ms.
"""

from __future__ import annotations

from decimal import Decimal
from itertools import islice
from math import prod
from typing import Any

import msgspec

from gateway.edge.schema.finite import resolve
from gateway.edge.schema.sampling import fail

MAX_PROPERTIES = 1_000  # in a whole schema
MAX_IN_OBJECT = 400
MAX_OPTIONS = 2_000
MAX_COMBINATIONS = 64
MAX_ENUM_VALUES = 1_000
MAX_NODES = 20_000
MAX_TEXT = 120_000  # characters of a schema's names and strings, as OpenAI has it
MAX_PATTERN = 1_024
MAX_PATTERNS = 16_384  # characters of all patterns
MAX_MULTIPLES = 5_000
MAX_COUNT = 100_000
TOOLS_FACTOR = 2  # so much more all tools together may hold
_OPTIONS = ("anyOf", "oneOf", "allOf", "prefixItems")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_SCHEMA, _MAP, _VALUE, _NOTE = range(4)  # what a node is: of a _MAP only the values are schemas
_KINDS = dict.fromkeys(_MAPS, _MAP) | {"const": _VALUE, "enum": _VALUE, "default": _NOTE, "examples": _NOTE}


class Size(msgspec.Struct, kw_only=True):
    """What the time of compiling grows with; `fault` says what is too big by itself."""

    nodes: int = 0
    properties: int = 0
    options: int = 0
    enum: int = 0
    chars: int = 0
    patterns: int = 0
    multiples: int = 0
    fault: str = ""

    def add(self, other: Size) -> None:
        """Add what another schema holds."""
        for name in self.__struct_fields__[:-1]:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def check(self, param: str, factor: int = 1) -> None:
        """Raise InvalidRequestError naming the limit that is passed."""
        if self.fault:
            raise fail(param, self.fault)
        limits = (
            (self.enum, MAX_ENUM_VALUES, "enum values"),
            (self.properties, MAX_PROPERTIES, "properties"),
            (self.options, MAX_OPTIONS, "options (of anyOf and its like, and of prefixItems)"),
            (self.patterns, MAX_PATTERNS, "characters in its patterns"),
            (
                self.multiples,
                MAX_MULTIPLES,
                "as the sum of its multipleOf, less the point and zeros at the end,",
            ),
            (self.nodes, MAX_NODES, "values (nested ones included)"),
            (self.chars, MAX_TEXT, "characters"),
        )
        for number, limit, what in limits:
            if number > limit * factor:
                whose = "a schema" if factor == 1 else "the schemas of all tools"
                raise fail(param, f"{whose} may have {limit * factor} {what} at most.")

    @property
    def is_too_big(self) -> bool:
        """Tell whether it is no use to count on."""
        return bool(self.fault) or self.nodes > MAX_NODES or self.enum > MAX_ENUM_VALUES


def measure(schema: dict[str, Any]) -> Size:
    """Count what a schema holds, up to where it is too big."""
    size = Size()
    stack: list[tuple[Any, int]] = [(schema, _SCHEMA)]
    while stack and not size.is_too_big:
        node, kind = stack.pop()
        size.nodes += 1
        size.enum += kind == _VALUE
        if isinstance(node, str):
            size.chars += len(node)
        elif isinstance(node, list):
            stack += [(one, kind) for one in node[: MAX_NODES + 1]]
        elif isinstance(node, dict):
            size.chars += sum(map(len, node))
            if kind == _SCHEMA:
                _count(node, schema, size)
                size.enum -= isinstance(node.get("enum"), list)  # the list itself is no value
                stack += [(one, _KINDS.get(name, _SCHEMA)) for name, one in islice(node.items(), MAX_NODES + 1)]
            else:
                inner = _SCHEMA if kind == _MAP else kind
                stack += [(one, inner) for one in islice(node.values(), MAX_NODES + 1)]
    return size


def _count(node: dict[str, Any], root: dict[str, Any], size: Size) -> None:
    size.properties += _len(node.get("properties")) + _len(node.get("patternProperties"))
    size.options += sum(_len(node.get(name)) for name in _OPTIONS)
    size.multiples += _multiple(node.get("multipleOf"))
    patterns = [node.get("pattern"), *(_dict(node.get("patternProperties")))]
    size.patterns += sum(len(pattern) for pattern in patterns if isinstance(pattern, str))
    size.fault = _fault(node, root)


def _fault(node: dict[str, Any], root: dict[str, Any]) -> str:
    for name in ("properties", "patternProperties"):
        if _len(node.get(name)) > MAX_IN_OBJECT:
            return f"an object may have {MAX_IN_OBJECT} {name} at most, not {_len(node.get(name))}."
    pattern = node.get("pattern")
    if isinstance(pattern, str) and len(pattern) > MAX_PATTERN:
        return f"a pattern may have {MAX_PATTERN} characters at most, not {len(pattern)}."
    for name in _COUNTS:
        count = node.get(name)
        if isinstance(count, int | float) and count > MAX_COUNT:
            return f"{name} may be {MAX_COUNT} at most, not {count}."
    parts = [node, *(_target(one, root) for one in _list(node.get("allOf")))]
    choices = [_len(part.get(name)) for part in parts for name in ("anyOf", "oneOf") if _len(part.get(name)) > 1]
    if len(choices) > 1 and prod(choices) > MAX_COMBINATIONS:
        return f"allOf may join {MAX_COMBINATIONS} combinations of options at most."
    return ""


def _target(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """Return a schema, or the one that it refers to."""
    node = _dict(schema)
    return _dict(resolve(root, node["$ref"])) if isinstance(node.get("$ref"), str) else node


def _multiple(value: Any) -> int:
    """Return how many remainders are told apart: of 0.25 and 2500 it is 25."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return 0
    digits = Decimal(str(value)).normalize().as_tuple().digits
    return int("".join(map(str, digits)))


def _len(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else 0


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
