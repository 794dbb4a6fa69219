"""Items of responses and conversations, inwards: a string or a list of items -> messages, each with an id.

What the assistant said in a row is one message to the chat template, however many items it was: thoughts, text, calls.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.edge.identity import new_id
from gateway.edge.schema.called import custom_call
from gateway.edge.schema.content import Part, role_of, said, text_of
from gateway.edge.schema.declared import joined
from gateway.edge.schema.kinds import missing, must_be
from gateway.edge.schema.pictures import Pictures
from gateway.edge.schema.sampling import fail
from wire.messages import ChatMessage, ToolCall, ToolForm

_CALLS = {"function_call": "fc", "custom_tool_call": "ctc"}  # and how the ids of such items begin
_OUTPUTS = {"function_call_output": "fco", "custom_tool_call_output": "ctco"}


class Item(msgspec.Struct, kw_only=True):
    """One input item; without a type it is a message. Objects are what other types have where ours have text."""

    type: str = "message"
    id: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    summary: list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: str | list[Part] | dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


def translate_items(
    items: str | list[Item], where: str, *, root: str, pictures: Pictures | None = None
) -> tuple[ChatMessage, ...]:
    """Translate the input; its pictures go to `pictures`. Raises InvalidRequestError naming what is not supported.

    A reasoning item belongs to the text or call of the assistant that follows it; without one it says nothing.
    """
    if isinstance(items, str):
        return (ChatMessage(role="user", content=items, item_id=new_id("msg", root)),)
    messages: list[ChatMessage] = []
    reasoning = ""
    for at, item in enumerate(items):
        place = f"{where}[{at}]"
        if item.type == "reasoning":
            reasoning += text_of(_reasoning_parts(item), f"{place}.content")
            continue
        message = _translate(item, place, root, pictures)
        if message.role == "assistant":
            message = msgspec.structs.replace(message, reasoning=reasoning)
        before = messages[-1] if messages else None
        if before is not None and _goes_on(before, message):
            messages[-1] = msgspec.structs.replace(before, tool_calls=before.tool_calls + message.tool_calls)
        else:
            messages.append(message)
        reasoning = ""
    return tuple(messages)


def _goes_on(before: ChatMessage, message: ChatMessage) -> bool:
    """Tell whether calls belong to the message of the assistant before them."""
    return bool(before.role == message.role == "assistant" and message.tool_calls and not message.reasoning)


def _translate(item: Item, where: str, root: str, pictures: Pictures | None) -> ChatMessage:
    if item.type == "message":
        if item.content is None:
            raise missing(f"{where}.content", "a string or an array of text parts")
        role = role_of(item.role or "", f"{where}.role")
        if role == "tool":
            raise fail(f"{where}.role", "a tool's result is an item of type function_call_output.")
        parts = said(item.content, f"{where}.content", pictures if role == "user" else None)
        return ChatMessage(role=role, item_id=new_id("msg", root)).saying(parts)
    if item.type in _CALLS:
        call = _call(item, where)
        return ChatMessage(role="assistant", tool_calls=(call,), item_id=new_id(_CALLS[item.type], root))
    if item.type in _OUTPUTS:
        if item.output is None:
            raise missing(f"{where}.output", "a string or an array of text parts")
        if isinstance(item.output, dict):
            raise must_be(f"{where}.output", "a string or an array of text parts", item.output)
        return ChatMessage(
            role="tool",
            tool_call_id=_needed(item.call_id, f"{where}.call_id"),
            item_id=new_id(_OUTPUTS[item.type], root),
        ).saying(said(item.output, f"{where}.output", pictures))
    hint = "; ask for a summary in a message instead" if item.type.startswith("compaction") else ""
    raise fail(f"{where}.type", f"an item of type {item.type[:40]!r} is not supported{hint}.")


def _call(item: Item, where: str) -> ToolCall:
    call_id, name = _needed(item.call_id, f"{where}.call_id"), _needed(item.name, f"{where}.name")
    space = item.namespace or ""
    shown = joined(space, name) if space else name
    if item.type == "custom_tool_call":
        if item.input is None:
            raise missing(f"{where}.input")
        return custom_call(call_id, name, item.input, shown=shown, namespace=space)
    if isinstance(item.arguments, dict):
        raise must_be(f"{where}.arguments", "JSON in a string", item.arguments)
    form = ToolForm(name=name, namespace=space) if space else None
    return ToolCall(id=call_id, name=shown, arguments=item.arguments or "", form=form)


def _reasoning_parts(item: Item) -> str | list[Part] | None:
    if isinstance(item.content, list):
        return [msgspec.structs.replace(part, type="text") for part in item.content]
    return item.content or [msgspec.structs.replace(part, type="text") for part in item.summary or ()]


def _needed(value: str | None, where: str) -> str:
    if not value:
        raise missing(where)
    return value
