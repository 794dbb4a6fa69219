"""Messages in Anthropic's shape: content blocks, inwards.

A user message that holds tool results becomes a tool message for each of them.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import msgspec

from gateway.edge.schema.body import check_depth
from gateway.edge.schema.content import allowed_here, in_lines
from gateway.edge.schema.kinds import missing, must_be
from gateway.edge.schema.pictures import Pictures
from gateway.edge.schema.sampling import fail
from wire.messages import ChatMessage, ImageRef, ToolCall


class Block(msgspec.Struct, kw_only=True):
    """One block of a message's content."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    source: str | dict[str, Any] | None = None
    title: str | None = None
    context: str | None = None
    citations: dict[str, Any] | None = None


class AnthropicMessage(msgspec.Struct, kw_only=True):
    """One message."""

    role: str
    content: str | list[Block]


def translate_content(message: AnthropicMessage, where: str, pictures: Pictures | None = None) -> list[ChatMessage]:
    """Return the messages that one of Anthropic's holds, in the order of its blocks."""
    if message.role == "assistant":
        return [_assistant(message, where)]
    if message.role == "system":
        return [ChatMessage(role="system", content=text_blocks(message.content, f"{where}.content"))]
    if message.role != "user":
        raise fail(f"{where}.role", f"must be user, assistant or system, not {message.role[:40]!r}.")
    if isinstance(message.content, str):
        return [ChatMessage(role="user", content=message.content)]
    if not message.content:
        raise fail(f"{where}.content", "must hold at least one block.")
    return _of_user(message.content, f"{where}.content", pictures)


def _of_user(blocks: list[Block], where: str, pictures: Pictures | None) -> list[ChatMessage]:
    """Return a tool message for each tool result, and a user message for what stands between them."""
    found: list[ChatMessage] = []
    numbered = [(f"{where}[{at}]", block) for at, block in enumerate(blocks)]
    for is_result, run in groupby(numbered, lambda one: one[1].type == "tool_result"):
        if is_result:
            found += [_tool_result(block, place, pictures) for place, block in run]
        else:
            parts = [_seen(block, place, pictures) for place, block in run]
            found.append(ChatMessage(role="user").saying(in_lines(parts)))
    return found


def _tool_result(block: Block, place: str, pictures: Pictures | None) -> ChatMessage:
    if not block.tool_use_id:
        raise missing(f"{place}.tool_use_id")
    result = ChatMessage(role="tool", tool_call_id=block.tool_use_id)
    return result.saying(_seen_all(block.content or "", f"{place}.content", pictures))


def _seen_all(content: str | list[Block], where: str, pictures: Pictures | None) -> list[str | ImageRef]:
    if isinstance(content, str):
        return [content]
    return in_lines(_seen(block, f"{where}[{at}]", pictures) for at, block in enumerate(content))


def _seen(block: Block, place: str, pictures: Pictures | None) -> str | ImageRef:
    """Return what a block shows: a text, a document's text, or a picture."""
    if block.type != "image":
        return text_blocks([block], place, at="", documents=True)
    allowed = allowed_here(pictures, place)
    source = block.source if isinstance(block.source, dict) else {}
    kind, media_type, data = source.get("type"), source.get("media_type"), source.get("data")
    if kind != "base64":
        raise fail(f"{place}.source.type", "must be base64: no addresses are opened and no files are kept.")
    if not isinstance(media_type, str):
        raise must_be(f"{place}.source.media_type", "a string", media_type)
    if not isinstance(data, str):
        raise must_be(f"{place}.source.data", "a string", data)
    return allowed.from_base64(media_type, data, f"{place}.source.data", media_type_at=f"{place}.source.media_type")


def _assistant(message: AnthropicMessage, where: str) -> ChatMessage:
    if isinstance(message.content, str):
        return ChatMessage(role="assistant", content=message.content)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for at, block in enumerate(message.content):
        place = f"{where}.content[{at}]"
        if block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            if not block.id or not block.name:
                raise missing(f"{place}.{'name' if block.id else 'id'}")
            check_depth(block.input, f"{place}.input")
            arguments = msgspec.json.encode(block.input or {}).decode()
            calls.append(ToolCall(id=block.id, name=block.name, arguments=arguments))
        elif block.type != "redacted_thinking":  # what it holds is known to its author only
            texts.append(text_blocks([block], place, at=""))
    return ChatMessage(
        role="assistant", content="\n".join(texts), reasoning="\n".join(thoughts), tool_calls=tuple(calls)
    )


def text_blocks(content: str | list[Block], where: str, *, at: str = "[{}]", documents: bool = False) -> str:
    """Join text blocks, and documents where they may stand. Raises InvalidRequestError naming what is none."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for number, block in enumerate(content):
        place = where + at.format(number)
        if documents and block.type in ("document", "search_result"):
            texts.append(_document(block, place))
            continue
        if block.type != "text":
            raise fail(place, f"a block of type {block.type[:40]!r} is not supported here.")
        if block.text is None:
            raise missing(f"{place}.text")
        texts.append(block.text)
    return "\n".join(texts)


def _document(block: Block, place: str) -> str:
    """Return a document's or a search result's text below its title; others than texts are refused."""
    if (block.citations or {}).get("enabled"):
        raise fail(f"{place}.citations", "are not supported.")
    if block.type == "search_result":
        named, inner, path = [block.title, block.source], block.content, f"{place}.content"
    else:
        source = block.source if isinstance(block.source, dict) else {}
        named, path = [block.title, block.context], f"{place}.source"
        inner = source.get("data") if source.get("type") == "text" else None
        if not isinstance(inner, str | None):
            raise must_be(f"{path}.data", "a string", inner)
        if source.get("type") == "content":
            inner = _blocks(source.get("content"), f"{path}.content")
    if inner is None:
        raise fail(path, "must hold text; other documents are not supported.")
    texts = [*(text for text in named if isinstance(text, str) and text), text_blocks(inner, path)]
    return "\n".join(texts)


def _blocks(value: Any, place: str) -> str | list[Block] | None:
    try:
        return msgspec.convert(value, str | list[Block] | None)
    except (msgspec.ValidationError, RecursionError):
        raise must_be(place, "a string or an array of text blocks", value) from None
