"""Reads one call whose arguments are written as elements, a tag round each name and value, and makes JSON of it.

A value is text as it stands; what it means in JSON is told by the function's schema. Texts are passed on as they come,
other values when they are whole: only then it is known whether they are JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gateway.postprocess.tools.events import Arguments
from gateway.postprocess.tools.held_reader import HeldReader
from gateway.postprocess.tools.overlap import overlap

_MAX_REFERENCES = 8
_DEFINITION = re.compile(r"#/(\$defs|definitions)/([^/]+)")
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_KINDS: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}


class Form(NamedTuple):
    """The tags of a style. Without `value` a value begins behind the name; without `end` the call's own tag ends it.

    `lines`: the line breaks right inside a value's tags are not part of it.
    """

    name: str
    name_end: str
    value: str
    value_end: str
    end: str
    lines: bool


class ElementReader(HeldReader):
    """Follows one call; start it behind the function's name."""

    def __init__(self, name: str, schema: Mapping[str, Any], form: Form) -> None:
        super().__init__(name, self._between)
        self._form = form
        self._schema = schema
        properties = schema.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        self._written = ""  # how the arguments begin
        self._kinds: frozenset[str] | None = None  # of the value that is read; None: any
        self._fresh = False  # nothing of the value was read yet

    @property
    def in_string(self) -> bool:
        """Tell whether the text stands inside a value."""
        return self._state in (self._text, self._scalar)

    def close(self) -> None:
        """Take the call's closing tag, which ends it too."""
        if self._state == self._between and not self.done:
            self._finish()

    def break_off(self) -> None:
        """Pass on what is held when the text ends inside the call, up to where a tag may have begun."""
        if self._state == self._scalar:
            self._argue(self._held[: len(self._held) - overlap(self._held, (self._form.value_end,))].strip())

    def _between(self) -> bool:
        form = self._form
        self._held = self._held.lstrip()
        tags = [tag for tag in (form.name, form.end) if tag]
        if form.end and self._held.startswith(form.end):
            self._held = self._held[len(form.end) :]
            self._finish()
        elif self._held.startswith(form.name):
            self._held, self._state = self._held[len(form.name) :], self._name
        elif any(tag.startswith(self._held) for tag in tags):
            return False
        else:  # what is no element says nothing
            self._held = self._held[1:]
        return True

    def _name(self) -> bool:
        name, end, rest = self._held.partition(self._form.name_end)
        if not end:
            return False
        key = name.strip()
        self._held, self._fresh = rest, True
        self._kinds = kinds_of(resolved(self._properties.get(key, {}), self._schema))
        self._argue(f"{', ' if self._written else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        self._state = self._value if self._form.value else self._begin_value()
        return True

    def _value(self) -> bool:
        tag = self._form.value
        self._held = self._held.lstrip()
        if self._held.startswith(tag):
            self._held, self._state = self._held[len(tag) :], self._begin_value()
        elif tag.startswith(self._held):
            return False
        else:
            self._held = self._held[1:]
        return True

    def _begin_value(self) -> Callable[[], bool]:
        if self._kinds is None or self._kinds != {"string"}:
            return self._scalar
        self._argue('"')
        return self._text

    def _text(self) -> bool:
        if self._fresh and self._form.lines:
            self._held = self._held.removeprefix("\n")
        self._fresh = False
        text, end, rest = self._held.partition(self._form.value_end)
        if end:
            self._argue(_inside(text.removesuffix("\n") if self._form.lines else text) + '"')
            self._held, self._state = rest, self._between
            return True
        ends = (self._form.value_end, "\n" + self._form.value_end)[: 2 if self._form.lines else 1]
        keep = overlap(self._held, ends)
        said, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        self._argue(_inside(said))
        return False

    def _scalar(self) -> bool:
        text, end, rest = self._held.partition(self._form.value_end)
        if not end:
            return False
        if self._form.lines:
            text = text.removeprefix("\n").removesuffix("\n")
        self._argue(as_json(text, self._kinds))
        self._held, self._state = rest, self._between
        return True

    def _argue(self, piece: str) -> None:
        if piece:
            self._written = self._written or piece
            self.events.append(Arguments(piece))

    def _finish(self) -> None:
        self._argue("}" if self._written else "{}")
        self.done = True


def resolved(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Follow references to the root's definitions; empty for what is no schema or leads nowhere."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        place = _DEFINITION.fullmatch(schema["$ref"])
        definitions = root.get(place[1]) if place else None
        schema = definitions.get(place[2]) if place and isinstance(definitions, Mapping) else {}
    return dict(schema) if isinstance(schema, Mapping) else {}


def kinds_of(schema: Any) -> frozenset[str] | None:
    """Return the JSON types that a schema lets through, or None where it does not say."""
    if not isinstance(schema, Mapping):
        return None
    kind, values = schema.get("type"), schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(one for one in kind if isinstance(one, str))
    if isinstance(values, list):
        return frozenset("null" if value is None else _KINDS.get(type(value), "") for value in values)
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            found = [kinds_of(one) for one in schema[word]]
            return None if None in found else frozenset().union(*(one for one in found if one is not None))
    return None


def as_json(text: str, kinds: frozenset[str] | None) -> str:
    """Return a value's text as JSON: as it is if it is JSON of a kind that may be, otherwise as a string."""
    written = _PYTHON.get(text.strip(), text.strip())
    try:
        value = json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    kind = "null" if value is None else _KINDS[type(value)]
    if kinds is None or kind in kinds or (kind == "integer" and "number" in kinds) or "string" not in kinds:
        return written
    return json.dumps(text, ensure_ascii=False)


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _inside(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
