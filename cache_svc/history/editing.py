"""Takes one item out of what was said in a turn; the messages for the next prompt follow."""

from __future__ import annotations

from typing import Any

import msgspec

from cache_svc.history.items import calls_of, items_of, output_items
from cache_svc.history.records import Said
from wire.messages import ChatMessage, ToolCall


def without(said: Said, item_id: str) -> Said | None:
    """Return the turn without an item, or None if it has no such item."""
    for place, message in enumerate(said.input):
        items = items_of(message, "completed")
        if any(item["id"] == item_id for item in items):
            left = _message_of([item for item in items if item["id"] != item_id], message)
            return msgspec.structs.replace(said, input=_put(said.input, place, left))
    items = output_items(said)
    left_items = [item for item in items if item["id"] != item_id]
    if len(left_items) == len(items):
        return None
    answer = _message_of(left_items, said.output[0] if said.output else ChatMessage(role="assistant"))
    output = (answer,) if answer is not None else ()
    return msgspec.structs.replace(said, output=output, items=tuple(left_items) if left_items else None)


def _put(messages: tuple[ChatMessage, ...], place: int, message: ChatMessage | None) -> tuple[ChatMessage, ...]:
    return messages[:place] + ((message,) if message is not None else ()) + messages[place + 1 :]


def _message_of(items: list[dict[str, Any]], before: ChatMessage) -> ChatMessage | None:
    """Return a message that says what is left of it, or None if nothing is."""
    if not items:
        return None
    made = {item["id"]: call for item, call in zip(calls_of(before, ""), before.tool_calls, strict=True)}
    texts: dict[str, str] = {"message": "", "reasoning": ""}
    calls: list[ToolCall] = []
    for item in items:
        if "call_id" in item:
            calls.append(made[item["id"]])
        else:
            parts = [*(item.get("content") or ()), *(item.get("summary") or ())]
            texts[item["type"]] += "".join(part.get("text", "") for part in parts)
    return msgspec.structs.replace(
        before, content=texts["message"], reasoning=texts["reasoning"], tool_calls=tuple(calls)
    )
