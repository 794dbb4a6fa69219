"""Messages as a chat template wants them: dicts in the Hugging Face form."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tokenizer_svc.marking import map_strings
from wire.errors import TemplateError
from wire.messages import ChatMessage, ImageRef, ToolCall

SYSTEM_ROLES = frozenset({"system", "developer"})
ROLES = SYSTEM_ROLES | {"user", "assistant", "tool", "function"}
Change = Callable[[str], str]
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


def check_roles(messages: Sequence[ChatMessage]) -> None:
    """Refuse unknown roles: templates write them next to control tokens. Raises TemplateError."""
    for at, message in enumerate(messages):
        if message.role not in ROLES:
            known = ", ".join(sorted(ROLES))
            raise TemplateError(f"a message's role must be one of {known}", param=f"messages[{at}].role")


def with_system(messages: Sequence[ChatMessage], text: str) -> list[ChatMessage]:
    """Put text before the first system message's, or a system message before all: templates want one, at the start."""
    if messages and messages[0].role in SYSTEM_ROLES:
        first = messages[0]
        content = f"{text}\n\n{first.content}" if first.content else text
        return [msgspec.structs.replace(first, content=content), *messages[1:]]
    return [ChatMessage(role="system", content=text), *messages]


def system_folded(messages: Sequence[ChatMessage]) -> list[ChatMessage] | None:
    """Put system messages behind the first message into others; None if there are none.

    Each joins the system or user message before it, else the user's behind it, else it is one of the user's. Agents
    tell their models something in mid-conversation that way; many templates take one system message, at the start.
    """
    told: list[ChatMessage] = list(messages[:1])
    waiting: list[str] = []
    for message in messages[1:]:
        if message.role in SYSTEM_ROLES and not waiting and told[-1].role in {*SYSTEM_ROLES, "user"}:
            told[-1] = told[-1].saying([*told[-1].parts, f"\n\n{message.content}"])
        elif message.role in SYSTEM_ROLES:
            waiting.append(message.content)
        elif waiting and message.role == "user":
            told.append(message.saying(["\n\n".join((*waiting, "")), *message.parts]))
            waiting = []
        else:
            told += [ChatMessage(role="user", content="\n\n".join(waiting)), message] if waiting else [message]
            waiting = []
    if waiting:
        told.append(ChatMessage(role="user", content="\n\n".join(waiting)))
    return told if any(message.role in SYSTEM_ROLES for message in messages[1:]) else None


def without_tags(message: ChatMessage) -> ChatMessage:
    """Move thinking that a client sent back inside an assistant's content to where templates look for it."""
    found = _THOUGHT.match(message.content) if message.role == "assistant" and not message.reasoning else None
    if not found:
        return message
    return msgspec.structs.replace(message, content=message.content[found.end() :], reasoning=found[1].strip("\n"))


def as_dicts(
    messages: Sequence[ChatMessage],
    *,
    knows_developer: bool,
    arguments_as_text: bool = False,
    in_parts: bool = False,
    change: Change,
    change_key: Change,
) -> list[dict[str, Any]]:
    """Return the messages for the template; `change` is applied to every string a caller wrote.

    What a message with pictures says is a list of parts; `in_parts`: what the others say, too.
    """
    told = []
    for message in messages:
        entry = _as_dict(message, knows_developer, change)
        if in_parts or message.images:
            entry["content"] = [_part(part, change) for part in message.parts or [""]]
        if message.tool_calls:
            entry["tool_calls"] = [
                _tool_call(call, arguments_as_text, change, change_key) for call in message.tool_calls
            ]
        told.append(entry)
    return told


def _as_dict(message: ChatMessage, knows_developer: bool, change: Change) -> dict[str, Any]:
    role = "system" if message.role == "developer" and not knows_developer else message.role
    entry: dict[str, Any] = {"role": role, "content": change(message.content)}
    if message.name is not None:
        entry["name"] = change(message.name)
    if message.reasoning:
        entry["reasoning_content"] = entry["thinking"] = change(message.reasoning)
    if message.tool_call_id is not None:
        entry["tool_call_id"] = _id(message.tool_call_id, change)
    return entry


def _part(part: str | ImageRef, change: Change) -> dict[str, Any]:
    return {"type": "text", "text": change(part)} if isinstance(part, str) else {"type": "image"}


def _tool_call(call: ToolCall, as_text: bool, change: Change, change_key: Change) -> dict[str, Any]:
    """Most templates expect arguments as an object; text that is no JSON object stays text."""
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, ValueError, RecursionError):
        arguments = None
    if as_text or not isinstance(arguments, dict):
        arguments = call.arguments
    function = {"name": change(call.name), "arguments": map_strings(arguments, change, change_key)}
    return {"id": _id(call.id, change), "type": "function", "function": function}


def _id(text: str, change: Change) -> str:
    """Leave nine letters and digits alone: some templates count them, and no control token is made of these."""
    return text if len(text) == 9 and text.isascii() and text.isalnum() else change(text)
