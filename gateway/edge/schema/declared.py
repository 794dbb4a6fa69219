"""Tools as clients declare them -> functions as chat templates show them, and what the client calls each.

A custom tool, which is called with free text, is shown as a function with one argument of that name. The tools of a
namespace (Responses) are shown by both names.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from gateway.edge.schema.body import check_depth
from gateway.edge.schema.custom_lark import read
from gateway.edge.schema.grammar import MAX_SOURCE
from gateway.edge.schema.kinds import must_be, shown
from gateway.edge.schema.quoted_regex import QuotingError
from gateway.edge.schema.sampling import fail
from gateway.edge.schema.schema_size import MAX_PATTERN
from gateway.postprocess.tools.free_input import NAME
from wire.messages import Grammar, ToolForm

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SYNTAX = {"lark": ("Lark grammar", MAX_SOURCE), "regex": ("regular expression", MAX_PATTERN)}


class Declared(NamedTuple):
    """A function to show, in the chat shape, and what its client calls it, if otherwise."""

    shown: dict[str, Any]
    form: ToolForm | None = None

    @property
    def name(self) -> str:
        """Return the name that the model sees."""
        name: str = self.shown["function"]["name"]
        return name


def declared(tool: dict[str, Any], where: str, *, namespaces: bool) -> list[Declared]:
    """Read one entry of `tools`. Raises InvalidRequestError naming the field."""
    kind = tool.get("type")
    if kind == "namespace" and namespaces:
        return _namespace(tool, where)
    if not isinstance(kind, str) or kind not in _READ:
        known = "'function', 'custom' or 'namespace'" if namespaces else "'function' or 'custom'"
        raise fail(f"{where}.type", f"must be {known}; this server runs no tools itself.")
    check_depth(tool, where)
    return [_READ[kind](tool, where)]


def _namespace(tool: dict[str, Any], where: str) -> list[Declared]:
    space = _name(tool, where)
    inner = tool.get("tools")
    if not isinstance(inner, list):
        raise must_be(f"{where}.tools", "an array of tools", inner)
    found: list[Declared] = []
    for at, one in enumerate(inner):
        if not isinstance(one, dict):
            raise must_be(f"{where}.tools[{at}]", "an object", one)
        for entry in declared(one, f"{where}.tools[{at}]", namespaces=False):
            form = entry.form or ToolForm(name=entry.name)
            form = ToolForm(name=form.name, namespace=space, custom=form.custom, grammar=form.grammar)
            function = {**entry.shown["function"], "name": joined(space, form.name)}
            found.append(Declared({**entry.shown, "function": function}, form))
    return found


def joined(namespace: str, name: str) -> str:
    """Return the name by which a model knows a tool of a namespace."""
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def _function(tool: dict[str, Any], where: str) -> Declared:
    """Read a function; the Responses API writes its fields beside the type."""
    function, inner, is_flat = _fields(tool, "function", where)
    _name(function, inner)
    if not isinstance(function.get("strict"), bool | None):
        raise must_be(f"{inner}.strict", "true or false", function["strict"])
    if not isinstance(function.get("parameters", {}), dict | None):
        raise must_be(f"{inner}.parameters", "a JSON schema, an object", function["parameters"])
    return Declared({"type": "function", "function": function} if is_flat else {**tool, "function": function})


def _custom(tool: dict[str, Any], where: str) -> Declared:
    custom, inner, _ = _fields(tool, "custom", where)
    name, grammar = _name(custom, inner), _format(custom.get("format"), f"{inner}.format")
    argument: dict[str, Any] = {"type": "string"}
    if grammar is not None:
        argument["description"] = f"Text of this {_SYNTAX[grammar.kind][0]}:\n{grammar.source}"
    parameters = {"type": "object", "properties": {NAME: argument}, "required": [NAME], "additionalProperties": False}
    told = {"description": custom["description"]} if custom.get("description") else {}
    shown = {"type": "function", "function": {"name": name, **told, "parameters": parameters}}
    return Declared(shown, ToolForm(name=name, custom=True, grammar=grammar))


_READ = {"function": _function, "custom": _custom}


def _fields(tool: dict[str, Any], kind: str, where: str) -> tuple[dict[str, Any], str, bool]:
    """Return what a tool says, where, and whether beside its type."""
    is_flat = kind not in tool and "name" in tool
    said = {key: value for key, value in tool.items() if key != "type"} if is_flat else tool.get(kind)
    if not isinstance(said, dict):
        raise must_be(f"{where}.{kind}", "an object", said)
    return said, where if is_flat else f"{where}.{kind}", is_flat


def _name(said: dict[str, Any], where: str) -> str:
    name = said.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise fail(f"{where}.name", "must have 1 to 64 letters, digits, underscores and dashes.")
    if not isinstance(said.get("description", ""), str | None):
        raise must_be(f"{where}.description", "a string", said["description"])
    return name


def _format(given: Any, where: str) -> Grammar | None:
    """Read what the text of a custom tool must look like."""
    kind = given.get("type") if isinstance(given, dict) else None
    if given is None or kind == "text":
        return None
    if kind != "grammar":
        raise fail(f"{where}.type", f"must be 'text' or 'grammar', not {shown(kind)}.")
    inner, place = (given["grammar"], f"{where}.grammar") if "grammar" in given else (given, where)
    syntax, source = (inner.get("syntax"), inner.get("definition")) if isinstance(inner, dict) else (None, None)
    if syntax not in [*_SYNTAX]:  # it may be a value that cannot be looked up
        raise fail(f"{place}.syntax", "must be 'lark' or 'regex'.")
    place = f"{place}.definition"
    if not isinstance(source, str) or not 1 <= len(source) <= _SYNTAX[syntax][1]:
        raise fail(place, f"must be a string of 1 to {_SYNTAX[syntax][1]} characters.")
    try:
        if syntax == "lark":
            read(source)
    except QuotingError as error:
        raise fail(place, f"{error}.") from None
    return Grammar(kind=syntax, source=source, field=place)
