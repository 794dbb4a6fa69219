"""Tools and tool_choice, inwards: OpenAI's chat and Responses shapes -> what is shown and what is enforced."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.edge.schema.declared import Declared, declared
from gateway.edge.schema.kinds import must_be, shown
from gateway.edge.schema.sampling import fail
from gateway.edge.schema.tool_grammar import Forced, tool_grammar
from wire.messages import Grammar, SamplingParams, ToolForm
from wire.model_card import ModelCard

MAX_TOOLS = 128
_UNASKED = re.compile(r"web_search(_preview)?(_\d{4}_\d\d_\d\d)?|image_generation|tool_search")


class ToolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Tools to show, in the chat shape, and the grammar that makes the model call (`required`), or call rightly.

    `forms`: by name, those that the client calls otherwise. `parallel`: several calls may come in one answer.
    """

    tools: tuple[dict[str, Any], ...] = ()
    forms: dict[str, ToolForm] = {}
    grammar: Grammar | None = None
    required: bool = False
    parallel: bool = True

    def bind(self, sampling: SamplingParams) -> SamplingParams:
        """Return the sampling with the grammar of the calls; calls that must be made win over a response format."""
        if self.grammar is None or (sampling.grammar is not None and not self.required):
            return sampling
        return msgspec.structs.replace(sampling, grammar=self.grammar)


def is_unasked(tool: dict[str, Any]) -> bool:
    """Tell whether OpenAI would run this tool and agents declare it in every request, whether they need it or not."""
    kind = tool.get("type")
    return isinstance(kind, str) and _UNASKED.fullmatch(kind) is not None


def plan_tools(
    tools: list[dict[str, Any]] | None,
    choice: Any,
    parallel: bool | None,
    card: ModelCard,
    *,
    param: str = "tools",
    more: Sequence[tuple[str, dict[str, Any]]] = (),
    is_response: bool = False,
) -> ToolPlan:
    """Check tools and choice and say what follows from them. Raises InvalidRequestError naming the field.

    `more`: tools that stand elsewhere in the body, with their places. `is_response`: there may be namespaces, and tools
    that OpenAI would run and nobody runs here are left out.
    """
    found = [
        entry
        for place, tool in (*((f"{param}[{at}]", tool) for at, tool in enumerate(tools or ())), *more)
        if not (is_response and is_unasked(tool))
        for entry in declared(tool, place, namespaces=is_response)
    ]
    if len(found) > MAX_TOOLS:
        raise fail(param, f"at most {MAX_TOOLS}, not {len(found)}.")
    _check_names(found, param)
    mode, names = _choice(choice, found)
    if mode == "none" or not found:
        return ToolPlan()
    if names is not None and _is_filter(choice):
        found = [entry for entry in found if entry.name in names]
    called = [_called(entry) for entry in found if names is None or entry.name in names]
    required = mode == "required"
    many = parallel is not False and (names is None or _is_filter(choice))  # a named function is called once
    grammar = tool_grammar(called, card, Forced.ALWAYS if required else Forced.ONCE_BEGUN, many=many)
    forms = {entry.name: entry.form for entry in found if entry.form is not None}
    shown = tuple(entry.shown for entry in found)
    return ToolPlan(tools=shown, forms=forms, grammar=grammar, required=required, parallel=many)


def _check_names(found: list[Declared], param: str) -> None:
    """Refuse two tools of one name where it would be unknown how one of them is called."""
    names = Counter(entry.name for entry in found)
    for entry in found:
        if entry.form is not None and names[entry.name] > 1:
            raise fail(param, f"{entry.name!r} stands twice; names of tools must be unique.")


def _called(entry: Declared) -> dict[str, Any]:
    """Return the function with what its free text must look like."""
    function: dict[str, Any] = entry.shown["function"]
    grammar = entry.form.grammar if entry.form is not None else None
    return {**function, "format": grammar} if grammar is not None else function


def _is_filter(choice: Any) -> bool:
    """Tell whether a choice narrows the tools that are shown; naming one function does not."""
    return isinstance(choice, dict) and choice.get("type") == "allowed_tools"


def _choice(choice: Any, found: list[Declared]) -> tuple[str, frozenset[str] | None]:
    """Return none, auto or required, and the functions it is limited to."""
    if choice is None or choice in ("none", "auto", "required"):
        if choice == "required" and not found:
            raise fail("tool_choice", "'required' needs tools.")
        return choice or "auto", None
    if not isinstance(choice, dict):
        raise must_be("tool_choice", "'none', 'auto', 'required' or an object", choice, of_texts=True)
    if _is_filter(choice):
        allowed = choice.get("allowed_tools", choice)
        wanted = allowed.get("tools") if isinstance(allowed, dict) else None
        if not isinstance(wanted, list) or not wanted or allowed.get("mode", "auto") not in ("auto", "required"):
            raise fail("tool_choice", "allowed_tools needs a mode, 'auto' or 'required', and an array of tools.")
        return allowed.get("mode", "auto"), frozenset().union(*(_named(tool, found) for tool in wanted))
    return "required", _named(choice, found)


def _named(choice: Any, found: list[Declared]) -> frozenset[str]:
    """Return the functions that are meant: one, or all of a namespace."""
    kind = choice.get("type", "function") if isinstance(choice, dict) else None
    if kind not in ("function", "custom", "namespace"):
        raise fail("tool_choice.type", "must be 'function' or 'custom'.")
    said = choice.get(kind, choice)
    name, space = (said.get("name"), said.get("namespace")) if isinstance(said, dict) else (None, None)
    if not isinstance(name, str):
        tool = f'{{"type": "{kind}", "{kind}": {{"name": ...}}}}'
        raise fail("tool_choice", f"names no tool; it must be {tool}, or one of 'none', 'auto' and 'required'.")
    names = frozenset(entry.name for entry in found if _is_meant(entry, kind, name, space))
    if not names:
        raise fail("tool_choice", f"{shown(name)} is not among the tools.")
    return names


def _is_meant(entry: Declared, kind: str, name: str, space: str | None) -> bool:
    form = entry.form or ToolForm(name=entry.name)
    if kind == "namespace":
        return form.namespace == name
    if form.custom is not (kind == "custom") or (space is not None and form.namespace != space):
        return False
    return name in (form.name, entry.name)
