"""Messages as clients write them: text, or a list of parts; everything that is not text is refused by its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.edge.schema.called import custom_call
from gateway.edge.schema.kinds import missing
from gateway.edge.schema.sampling import fail
from wire.messages import ChatMessage, ToolCall

TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


MAX_MESSAGES = 4_096  # more cost a template more time than they can say anything


class Part(msgspec.Struct, kw_only=True):
    """One part of a message's content."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None


class FunctionIn(msgspec.Struct, kw_only=True):
    """Name and arguments of a call the assistant made earlier."""

    name: str
    arguments: str = ""


class CustomIn(msgspec.Struct, kw_only=True):
    """Name and free text of a call of a custom tool."""

    name: str
    input: str = ""


class ToolCallIn(msgspec.Struct, kw_only=True):
    """A call the assistant made earlier."""

    id: str
    function: FunctionIn | None = None
    custom: CustomIn | None = None
    type: str = "function"


class MessageIn(msgspec.Struct, kw_only=True):
    """One message of a chat request."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCallIn] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: FunctionIn | None = None
    audio: dict[str, Any] | None = None


def text_of(content: str | list[Part] | None, where: str) -> str:
    """Join the text parts with a newline. Raises InvalidRequestError naming the part that is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for at, part in enumerate(content):
        if part.type in TEXT_PARTS:
            if part.text is None:
                raise missing(f"{where}[{at}].text")
            texts.append(part.text)
        elif part.type == "refusal":
            texts.append(part.refusal or "")
        elif not part.type:
            raise missing(f"{where}[{at}].type")
        else:
            raise fail(f"{where}[{at}]", f"a part of type {part.type[:40]!r} is not supported, only text is.")
    return "\n".join(texts)


def role_of(role: str, where: str) -> str:
    """Return the role in our words; `developer` is a system message."""
    if role not in ROLES:
        raise fail(where, f"must be one of {', '.join(ROLES)}, not {role[:40]!r}.")
    return ROLES[role]


def check_number(messages: Sequence[object], param: str = "messages", *, least: int = 1) -> None:
    """Refuse too few messages and too many."""
    if not least <= len(messages) <= MAX_MESSAGES:
        raise fail(param, f"must hold {least} to {MAX_MESSAGES} messages, not {len(messages)}.")


def translate_message(message: MessageIn, where: str) -> ChatMessage:
    """Translate one chat message. Raises InvalidRequestError naming the field."""
    role = role_of(message.role, f"{where}.role")
    if message.content is None and role != "assistant":
        raise missing(f"{where}.content", "a string or an array of text parts")
    if role == "tool" and not message.tool_call_id:
        raise missing(f"{where}.tool_call_id")
    if message.function_call is not None:
        raise fail(f"{where}.function_call", "is not supported; use tool_calls.")
    if message.audio is not None:
        raise fail(f"{where}.audio", "no audio is kept; send what was said as content.")
    calls = message.tool_calls if role == "assistant" else None
    return ChatMessage(
        role=role,
        content=text_of(message.content, f"{where}.content") or message.refusal or "",
        name=message.name,
        tool_calls=tuple(_call(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(calls or ())),
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning_content or message.reasoning or "",
    )


def _call(call: ToolCallIn, where: str) -> ToolCall:
    if call.type == "custom" and call.custom is not None:
        return custom_call(call.id, call.custom.name, call.custom.input)
    if call.function is None:
        raise missing(f"{where}.{'custom' if call.type == 'custom' else 'function'}", "an object")
    return ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
