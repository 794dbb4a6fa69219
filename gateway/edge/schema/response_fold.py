"""A response put together from its events, as a client does it: what is known of one that is still being made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

_GROWING = {
    "response.output_text.delta": ("content", "content_index", "text"),
    "response.reasoning_text.delta": ("content", "content_index", "text"),
    "response.refusal.delta": ("content", "content_index", "refusal"),
    "response.reasoning_summary_text.delta": ("summary", "summary_index", "text"),
}
"""Event -> the list of parts, the field with the part's place in it, the field of the part that grows."""

_CALLS = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}


def fold(events: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the output that the events have told of so far."""
    items: list[dict[str, Any]] = []
    for event in events:
        data = msgspec.json.decode(event.partition(b"\ndata: ")[2])
        _apply(items, data)
    return items


def _apply(items: list[dict[str, Any]], data: dict[str, Any]) -> None:
    kind = data["type"]
    if kind == "response.output_item.added":
        items.append(data["item"])
    elif kind == "response.output_item.done":
        items[data["output_index"]] = data["item"]
    elif kind in ("response.content_part.added", "response.reasoning_summary_part.added"):
        parts = items[data["output_index"]]["content" if "content_index" in data else "summary"]
        parts.append(data["part"])
    elif kind in _CALLS:
        items[data["output_index"]][_CALLS[kind]] += data["delta"]
    elif kind in _GROWING:
        name, index, field = _GROWING[kind]
        part = items[data["output_index"]][name][data[index]]
        part[field] += data["delta"]
        if data.get("logprobs"):
            part["logprobs"] += data["logprobs"]
