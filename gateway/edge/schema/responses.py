"""POST /v1/responses, inwards: OpenAI's body -> wire.messages.Request with the conversation it continues.

A conversation longer than the context is cut at whole turns, oldest first, unless `truncation` is "disabled".
"""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec

from gateway.edge.identity import new_id, new_root, root_of
from gateway.edge.schema.body import check_depth
from gateway.edge.schema.chat import check_salt
from gateway.edge.schema.content import check_format, check_tools
from gateway.edge.schema.items import Item, translate_items
from gateway.edge.schema.sampling import (
    SamplingFields,
    check_budget,
    check_effort,
    check_template_kwargs,
    fail,
    token_limit,
    translate_sampling,
)
from wire.messages import ConversationRef, Request
from wire.model_card import ModelCard

LOGPROBS = "message.output_text.logprobs"
MAX_METADATA = 16


class Reasoning(msgspec.Struct, kw_only=True):
    """How much to think."""

    effort: str | None = None
    summary: str | None = None
    max_tokens: int | None = None


class ConversationIn(msgspec.Struct, kw_only=True):
    """A conversation given as an object."""

    id: str


class Text(msgspec.Struct, kw_only=True):
    """Options of the text."""

    format: dict[str, Any] | None = None


class ResponsesRequest(SamplingFields, kw_only=True):
    """The body; fields that are not listed are ignored."""

    model: str
    input: str | list[Item]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationIn | None = None
    max_output_tokens: int | None = None
    include: list[str] | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    metadata: dict[str, str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    prompt: Any = None
    user: str | None = None
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None


def translate_responses(body: ResponsesRequest, card: ModelCard) -> Request:
    """Check the body and return the request. Raises InvalidRequestError naming the field."""
    _refuse_unsupported(body)
    reasoning = body.reasoning or Reasoning()
    conversation = _conversation(body)
    messages = translate_items(body.input, "input", root=root_of(conversation.response_id))
    if not messages:
        raise fail("input", "must hold at least one message.")
    max_tokens = token_limit(max_output_tokens=body.max_output_tokens)
    return Request(
        model=card.name,
        messages=messages,
        instructions=body.instructions,
        tools=check_tools(body.tools, body.tool_choice),
        template_kwargs=check_template_kwargs(body.chat_template_kwargs),
        sampling=translate_sampling(body, card, max_tokens=max_tokens, logprobs=_logprobs(body)),
        effort=check_effort(reasoning.effort, "reasoning.effort"),
        budget_tokens=check_budget(reasoning.max_tokens, "reasoning.max_tokens"),
        conversation=conversation,
        cache_salt=check_salt(body.cache_salt),
        created_at=time.time(),
    )


def check_metadata(metadata: dict[str, str] | None) -> dict[str, str]:
    """Return the metadata: at most 16 pairs, keys up to 64 characters, values up to 512."""
    if len(metadata or ()) > MAX_METADATA:
        raise fail("metadata", f"at most {MAX_METADATA} pairs.")
    for key, value in (metadata or {}).items():
        if len(key) > 64 or len(value) > 512:
            raise fail(f"metadata.{key[:64]}", "keys have at most 64 characters and values 512.")
    return metadata or {}


def _refuse_unsupported(body: ResponsesRequest) -> None:
    if body.background:
        raise fail("background", "is not supported.")
    if body.prompt is not None:
        raise fail("prompt", "stored prompts are not supported.")
    if body.chat_template is not None:
        raise fail("chat_template", "the server's template cannot be replaced.")
    if body.stream_options is not None and not body.stream:
        raise fail("stream_options", "is only allowed with stream: true.")
    check_format(body.text.format if body.text else None, "text.format")
    check_depth(body.chat_template_kwargs, "chat_template_kwargs")
    check_metadata(body.metadata)


def _conversation(body: ResponsesRequest) -> ConversationRef:
    """Give the response an id below the root that it continues, so that it lands on the same partition."""
    conversation_id = body.conversation.id if isinstance(body.conversation, ConversationIn) else body.conversation
    if conversation_id is not None and body.previous_response_id is not None:
        raise fail("previous_response_id", "cannot be given together with conversation.")
    if conversation_id == "" or body.previous_response_id == "":
        raise fail("conversation" if conversation_id == "" else "previous_response_id", "is empty.")
    before = conversation_id or body.previous_response_id
    return ConversationRef(
        conversation_id=conversation_id,
        previous_response_id=body.previous_response_id,
        store=body.store is not False,
        response_id=new_id("resp", root_of(before) if before else new_root()),
        truncation=body.truncation or "auto",
    )


def _logprobs(body: ResponsesRequest) -> int | None:
    """Log probabilities come when `include` asks for them or `top_logprobs` is above 0."""
    wanted = LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
    return (body.top_logprobs or 0) if wanted else None
