"""Grammars of calls between tags that say the name in a head: DeepSeek's and Kimi's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway.edge.schema.lark import Calls, Opening, any_of, quote, repeated, tag_of
from wire.model_card import ModelCard


def deepseek_v3(functions: Sequence[dict[str, Any]], card: ModelCard, many: bool) -> Calls:
    """`function<sep>name`, the arguments fenced."""

    def call(name: str, arguments: str) -> str:
        fence, end = quote(f"{name}\n```json\n"), quote("\n```")
        return f'"function" {tag_of("<｜tool▁sep｜>", card)} {fence} {arguments} {end}'

    return _deepseek(functions, card, many, call, "\n")


def deepseek_v31(functions: Sequence[dict[str, Any]], card: ModelCard, many: bool) -> Calls:
    """`name<sep>` and the arguments."""
    return _deepseek(
        functions, card, many, lambda name, arguments: f"{quote(name)} {tag_of('<｜tool▁sep｜>', card)} {arguments}", ""
    )


def _deepseek(
    functions: Sequence[dict[str, Any]], card: ModelCard, many: bool, call: Callable[[str, str], str], between: str
) -> Calls:
    begin, end = tag_of("<｜tool▁call▁begin｜>", card), tag_of("<｜tool▁call▁end｜>", card)
    calls = [f"call_{at}: {call(one['name'], f'args_{at}')} {end}" for at, one in enumerate(functions)]
    first, last = tag_of("<｜tool▁calls▁begin｜>", card), tag_of("<｜tool▁calls▁end｜>", card)
    return _in_section(first, begin, calls, last, repeated(between, "marked", many))


def kimi_k2(functions: Sequence[dict[str, Any]], card: ModelCard, many: bool) -> Calls:
    """`functions.name:number`; the model counts."""
    begin, end = tag_of("<|tool_call_begin|>", card), tag_of("<|tool_call_end|>", card)
    argument = tag_of("<|tool_call_argument_begin|>", card)
    heads = [quote(f"functions.{one['name']}:") for one in functions]
    calls = [f"call_{at}: {head} NUMBER {argument} args_{at} {end}" for at, head in enumerate(heads)]
    first, last = tag_of("<|tool_calls_section_begin|>", card), tag_of("<|tool_calls_section_end|>", card)
    found = _in_section(first, begin, calls, last, repeated("", "marked", many))
    return found._replace(rules=[*found.rules, "NUMBER: /[0-9]{1,4}/"])


def _in_section(first: str, begin: str, calls: list[str], last: str, marked: str) -> Calls:
    """Return calls in a section; parsers take one that stands outside as well, so it may begin there too."""
    rules = [f"marked: {begin} call", any_of(len(calls)), *calls]
    return Calls((Opening(first, f"{marked} {last}"), Opening(begin, "call")), rules, in_sections=True)
