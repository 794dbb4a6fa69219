"""Tools and tool_choice, inwards: OpenAI's chat and Responses shapes -> what is shown and what is enforced."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.edge.schema.body import check_depth
from gateway.edge.schema.sampling import fail
from gateway.edge.schema.tool_grammar import Forced, tool_grammar
from wire.messages import Grammar, SamplingParams
from wire.model_card import ModelCard

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_UNASKED = re.compile(r"web_search(_preview)?(_\d{4}_\d\d_\d\d)?|image_generation|tool_search")


class ToolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Tools to show, in the chat shape, and the grammar that makes the model call (`required`), or call rightly.

    `parallel`: several calls may come in one answer.
    """

    tools: tuple[dict[str, Any], ...] = ()
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
    skips_unasked: bool = False,
) -> ToolPlan:
    """Check tools and choice and say what follows from them. Raises InvalidRequestError naming the field."""
    shown = tuple(
        _function(tool, f"{param}[{at}]")
        for at, tool in enumerate(tools or ())
        if not (skips_unasked and is_unasked(tool))
    )
    if len(shown) > MAX_TOOLS:
        raise fail(param, f"at most {MAX_TOOLS}, not {len(shown)}.")
    mode, names = _choice(choice, [tool["function"]["name"] for tool in shown])
    if mode == "none" or not shown:
        return ToolPlan()
    if names is not None and _is_filter(choice):
        shown = tuple(tool for tool in shown if tool["function"]["name"] in names)
    functions = [tool["function"] for tool in shown if names is None or tool["function"]["name"] in names]
    required = mode == "required"
    many = parallel is not False and (names is None or _is_filter(choice))  # a named function is called once
    grammar = tool_grammar(functions, card, Forced.ALWAYS if required else Forced.ONCE_BEGUN, many=many)
    return ToolPlan(tools=shown, grammar=grammar, required=required, parallel=many)


def _is_filter(choice: Any) -> bool:
    """Tell whether a choice narrows the tools that are shown; naming one function does not."""
    return isinstance(choice, dict) and choice.get("type") == "allowed_tools"


def _function(tool: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a tool in the chat shape; the Responses API writes the function's fields beside the type."""
    if tool.get("type") != "function":
        raise fail(f"{where}.type", "only 'function' is supported.")
    check_depth(tool, where)
    flat = "function" not in tool and "name" in tool
    function = {key: value for key, value in tool.items() if key != "type"} if flat else tool.get("function")
    inner = where if flat else f"{where}.function"
    if not isinstance(function, dict):
        raise fail(inner, "must be an object.")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise fail(f"{inner}.name", "must have 1 to 64 letters, digits, underscores and dashes.")
    if not isinstance(function.get("description", ""), str | None):
        raise fail(f"{inner}.description", "must be a string.")
    if not isinstance(function.get("strict"), bool | None):
        raise fail(f"{inner}.strict", "must be true or false.")
    if not isinstance(function.get("parameters", {}), dict | None):
        raise fail(f"{inner}.parameters", "must be a JSON schema, an object.")
    return {**tool, "function": function} if not flat else {"type": "function", "function": function}


def _choice(choice: Any, known: list[str]) -> tuple[str, frozenset[str] | None]:
    """Return none, auto or required, and the functions it is limited to."""
    if choice is None or choice in ("none", "auto", "required"):
        if choice == "required" and not known:
            raise fail("tool_choice", "'required' needs tools.")
        return choice or "auto", None
    if not isinstance(choice, dict):
        raise fail("tool_choice", "must be 'none', 'auto', 'required' or name a function.")
    if _is_filter(choice):
        allowed = choice.get("allowed_tools", choice)
        wanted = allowed.get("tools") if isinstance(allowed, dict) else None
        if not isinstance(wanted, list) or not wanted or allowed.get("mode", "auto") not in ("auto", "required"):
            raise fail("tool_choice", "allowed_tools needs a mode, 'auto' or 'required', and a list of tools.")
        return allowed.get("mode", "auto"), frozenset(_named(tool, known) for tool in wanted)
    return "required", frozenset((_named(choice, known),))


def _named(choice: Any, known: list[str]) -> str:
    if not isinstance(choice, dict) or choice.get("type", "function") != "function":
        raise fail("tool_choice.type", "only 'function' is supported.")
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, dict) else None
    if name not in known:
        raise fail("tool_choice", f"{str(name)[:80]!r} is not among the tools.")
    return str(name)
