"""Grammars of calls between tags that say the name in a head: DeepSeek's and Kimi's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway.edge.schema.lark import any_of, quote, repeated, tag_of
from wire.model_card import ModelCard


def deepseek_v3(functions: Sequence[dict[str, Any]], card: ModelCard, many: bool) -> list[str]:
    """`function<sep>name`, the arguments fenced."""

    def call(name: str, arguments: str) -> str:
        fence, end = quote(f"{name}\n```json\n"), quote("\n```")
        return f'"function" {tag_of("<｜tool▁sep｜>", card)} {fence} {arguments} {end}'

    return _deepseek(functions, card, many, call, "\n")


def deepseek_v31(functions: Sequence[dict[str, Any]], card: ModelCard, many: bool) -> list[str]:
    """`name<sep>` and the arguments."""
    return _deepseek(
        functions, card, many, lambda name, arguments: f"{quote(name)} {tag_of('<｜tool▁sep｜>', card)} {arguments}", ""
    )


def _deepseek(
    functions: Sequence[dict[str, Any]], card: ModelCard, many: bool, call: Callable[[str, str], str], between: str
) -> list[str]:
    begin, end = tag_of("<｜tool▁call▁begin｜>", card), tag_of("<｜tool▁call▁end｜>", card)
    calls = [f"call_{at}: {begin} {call(one['name'], f'args_{at}')} {end}" for at, one in enumerate(functions)]
    first, last = tag_of("<｜tool▁calls▁begin｜>", card), tag_of("<｜tool▁calls▁end｜>", card)
    return [f"start: {first} {repeated(between, 'call', many)} {last}", any_of(len(calls)), *calls]


def kimi_k2(functions: Sequence[dict[str, Any]], card: ModelCard, many: bool) -> list[str]:
    """`functions.name:number`; the model counts."""
    begin, end = tag_of("<|tool_call_begin|>", card), tag_of("<|tool_call_end|>", card)
    argument = tag_of("<|tool_call_argument_begin|>", card)
    heads = [quote(f"functions.{one['name']}:") for one in functions]
    calls = [f"call_{at}: {begin} {head} NUMBER {argument} args_{at} {end}" for at, head in enumerate(heads)]
    first, last = tag_of("<|tool_calls_section_begin|>", card), tag_of("<|tool_calls_section_end|>", card)
    start = f"start: {first} {repeated('', 'call', many)} {last}"
    return [start, any_of(len(calls)), *calls, "NUMBER: /[0-9]{1,4}/"]
