"""What comes out below /v1/messages, as Structs: Anthropic's shapes, for the OpenAPI document and the tests."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.edge.schema.answers import Answer


class ContentBlock(msgspec.Struct, kw_only=True):
    """A block of a message: text, thinking, or tool_use, each with its own fields."""

    type: Literal["text", "thinking", "tool_use"]


class MessageUsage(Answer):
    """Tokens, in Anthropic's words."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int
    service_tier: str
    output_tokens_details: dict[str, int]
    headrace: dict[str, Any]


class AnthropicAnswer(Answer):
    """The answer of /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
    stop_sequence: str | None
    usage: MessageUsage


class CountedTokens(Answer):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: int


class AnthropicErrorFields(Answer):
    """What went wrong; `details` of a `thread`, which is not kept here."""

    type: str
    message: str
    details: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class AnthropicError(Answer):
    """Any error below /v1/messages."""

    type: Literal["error"]
    error: AnthropicErrorFields
