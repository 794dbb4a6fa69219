"""Messages as the items of OpenAI's Responses and Conversations APIs.

A message of ours may be several items: reasoning, text and calls of the assistant are one message to the chat template.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from cache_svc.history.records import Said
from wire.messages import ChatMessage, ImageRef, ToolCall, ToolForm

TITLE_CHARACTERS = 60


def named(messages: Iterable[ChatMessage], turn_id: str, *, start: int = 0) -> tuple[ChatMessage, ...]:
    """Give every message that lacks one an item id, the same one at each call."""
    return tuple(
        message
        if message.item_id
        else msgspec.structs.replace(message, item_id=f"{_prefix(message)}_{_stem(turn_id)}{number:02x}")
        for number, message in enumerate(messages, start)
    )


def input_items(said: Said) -> list[dict[str, Any]]:
    """Return the items that went into a turn."""
    return [item for message in said.input for item in items_of(message, "completed")]


def output_items(said: Said) -> list[dict[str, Any]]:
    """Return the items that came out of a turn."""
    if said.items is not None:
        return [dict(item) for item in said.items]
    return [item for message in said.output for item in items_of(message, said.status)]


def all_items(said: Said, turn_id: str) -> list[dict[str, Any]]:
    """Return all items of a turn, oldest first, each with the id of its response if it belongs to one."""
    items = input_items(said) + output_items(said)
    return [item | {"response_id": turn_id} for item in items] if turn_id.startswith("resp_") else items


def items_of(message: ChatMessage, status: str) -> list[dict[str, Any]]:
    """Return a message as items."""
    item_id, role = message.item_id or "", message.role
    if role == "tool":
        kind = "custom_tool_call_output" if item_id.startswith("ctco_") else "function_call_output"
        result = [_part(part) for part in message.parts] if message.images else message.content
        output = {"type": kind, "call_id": message.tool_call_id, "output": result}
        return [{"id": item_id, **output, "status": "completed"}]
    if role != "assistant":
        content = [_part(part) for part in message.parts or [""]]
        return [{"id": item_id, "type": "message", "status": "completed", "role": role, "content": content}]
    status = status if status in ("completed", "incomplete") else "incomplete"
    items: list[dict[str, Any]] = []
    if message.reasoning:
        content = [{"type": "reasoning_text", "text": message.reasoning}]
        reasoning = {"type": "reasoning", "summary": [], "content": content, "status": status}
        items.append({"id": f"rs_{_stem(item_id)}", **reasoning})
    if message.content or not (message.reasoning or message.tool_calls):
        text = [{"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}]
        items.append({"id": item_id, "type": "message", "status": status, "role": role, "content": text})
    return items + calls_of(message, status)


def _part(part: str | ImageRef) -> dict[str, Any]:
    """Return a part of what was put in; `pictures.show` puts a picture in the place of its digest."""
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    return {"type": "input_image", "detail": "auto", "file_id": None, "image_url": part.digest}


def title_of(messages: Iterable[ChatMessage]) -> str:
    """Return a title for a conversation that begins with these messages: the first words of its user."""
    text = next((message.content for message in messages if message.role == "user" and message.content.strip()), "")
    return " ".join(text[: 4 * TITLE_CHARACTERS].split())[:TITLE_CHARACTERS].rstrip()


def calls_of(message: ChatMessage, status: str) -> list[dict[str, Any]]:
    """Return the calls of a message as items, in their order."""
    only = len(message.tool_calls) == 1 and (message.item_id or "").startswith(("fc_", "ctc_"))
    found = []
    for number, call in enumerate(message.tool_calls):
        form = call.form or ToolForm(name=call.name)
        prefix, said = "fc", {"type": "function_call", "call_id": call.id, "arguments": call.arguments}
        if form.custom:
            prefix, said = "ctc", {"type": "custom_tool_call", "call_id": call.id, "input": _input(call)}
        item_id = message.item_id if only else f"{prefix}_{_stem(message.item_id or '')}{number:02x}"
        names = {"name": form.name} | ({"namespace": form.namespace} if form.namespace else {})
        found.append({"id": item_id, **said, **names, "status": status})
    return found


def _input(call: ToolCall) -> str:
    """Return the free text that a custom tool is called with: the one argument of its function."""
    text: str = msgspec.json.decode(call.arguments)["input"]
    return text


def _prefix(message: ChatMessage) -> str:
    if message.role == "tool":
        return "fco"
    return "fc" if message.tool_calls and not message.content and len(message.tool_calls) == 1 else "msg"


def _stem(object_id: str) -> str:
    return object_id.partition("_")[2]
