"""Pieces of grammars in llguidance's Lark dialect that the styles of tool calls share."""

from __future__ import annotations

import json

from wire.model_card import ModelCard

MAX_CALLS = 32


def quote(text: str) -> str:
    """Write a text."""
    return json.dumps(text)


def tag_of(text: str, card: ModelCard) -> str:
    """Write a tag: by its number if it is a control token, which has no bytes."""
    token_id = card.tool_tags.get(text)
    return quote(text) if token_id is None else f"<[{token_id}]>"


def repeated(separator: str, item: str, many: bool) -> str:
    """Write one item, or one and more of them."""
    if not many:
        return item
    return f"{item} ({quote(separator)} {item}){{0,{MAX_CALLS - 1}}}" if separator else f"{item}{{1,{MAX_CALLS}}}"


def any_of(count: int) -> str:
    """Write the rule `call`: any of so many."""
    return "call: " + " | ".join(f"call_{at}" for at in range(count))
