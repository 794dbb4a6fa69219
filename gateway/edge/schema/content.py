"""Messages as clients write them: text, or a list of parts, texts and pictures; others are refused by their place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gateway.edge.schema.called import custom_call
from gateway.edge.schema.kinds import missing
from gateway.edge.schema.pictures import Pictures
from gateway.edge.schema.sampling import fail
from wire.messages import ChatMessage, ImageRef, ToolCall

TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
IMAGE_PARTS = frozenset({"image_url", "input_image"})
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


MAX_MESSAGES = 4_096  # more cost a template more time than they can say anything


class ImageUrl(msgspec.Struct, kw_only=True):
    """A picture as a data: URL; `detail` is read by models that look twice, which none here does."""

    url: str
    detail: str | None = None


class Part(msgspec.Struct, kw_only=True):
    """One part of a message's content."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    image_url: str | ImageUrl | None = None
    detail: str | None = None
    file_id: str | None = None


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
    return "".join(part for part in said(content, where, None) if isinstance(part, str))


def said(content: str | list[Part] | None, where: str, pictures: Pictures | None) -> list[str | ImageRef]:
    """Return texts and pictures in their order; without `pictures` none may stand here.

    Raises InvalidRequestError naming the part that is neither.
    """
    if content is None or isinstance(content, str):
        return [content or ""]
    return in_lines(_said(part, f"{where}[{at}]", pictures) for at, part in enumerate(content))


def _said(part: Part, where: str, pictures: Pictures | None) -> str | ImageRef:
    if part.type in TEXT_PARTS:
        if part.text is None:
            raise missing(f"{where}.text")
        return part.text
    if part.type == "refusal":
        return part.refusal or ""
    if not part.type:
        raise missing(f"{where}.type")
    if part.type in IMAGE_PARTS:
        return _picture(part, where, pictures)
    raise fail(where, f"a part of type {part.type[:40]!r} is not supported, only text and pictures are.")


def _picture(part: Part, where: str, pictures: Pictures | None) -> ImageRef:
    allowed = allowed_here(pictures, where)
    if part.file_id is not None:
        raise fail(f"{where}.file_id", "no files are kept; send the picture as a data: URL in image_url.")
    if part.image_url is None:
        raise missing(f"{where}.image_url", "a data: URL")
    if isinstance(part.image_url, str):
        return allowed.from_url(part.image_url, f"{where}.image_url", part.detail, f"{where}.detail")
    inner = f"{where}.image_url"
    return allowed.from_url(part.image_url.url, f"{inner}.url", part.image_url.detail, f"{inner}.detail")


def allowed_here(pictures: Pictures | None, where: str) -> Pictures:
    """Return what takes a picture at this place. Raises InvalidRequestError where there may be none."""
    if pictures is None:
        raise fail(where, "a picture may stand in what a user says and in what a tool returns, not here.")
    pictures.check_allowed(where)
    return pictures


def in_lines(parts: Iterable[str | ImageRef]) -> list[str | ImageRef]:
    """Return the parts, with a newline between texts that stand side by side."""
    found: list[str | ImageRef] = []
    for part in parts:
        if found and isinstance(part, str) and isinstance(found[-1], str):
            found[-1] += f"\n{part}"
        else:
            found.append(part)
    return found


def role_of(role: str, where: str) -> str:
    """Return the role in our words; `developer` is a system message."""
    if role not in ROLES:
        raise fail(where, f"must be one of {', '.join(ROLES)}, not {role[:40]!r}.")
    return ROLES[role]


def check_number(messages: Sequence[object], param: str = "messages", *, least: int = 1) -> None:
    """Refuse too few messages and too many."""
    if not least <= len(messages) <= MAX_MESSAGES:
        raise fail(param, f"must hold {least} to {MAX_MESSAGES} messages, not {len(messages)}.")


def translate_message(message: MessageIn, where: str, pictures: Pictures | None = None) -> ChatMessage:
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
    parts = said(message.content, f"{where}.content", pictures if role in ("user", "tool") else None)
    return ChatMessage(
        role=role,
        name=message.name,
        tool_calls=tuple(_call(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(calls or ())),
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning_content or message.reasoning or "",
    ).saying(parts if any(parts) else [message.refusal or ""])


def _call(call: ToolCallIn, where: str) -> ToolCall:
    if call.type == "custom" and call.custom is not None:
        return custom_call(call.id, call.custom.name, call.custom.input)
    if call.function is None:
        raise missing(f"{where}.{'custom' if call.type == 'custom' else 'function'}", "an object")
    return ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
