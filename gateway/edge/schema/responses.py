"""POST /v1/responses, inwards: OpenAI's body -> wire.messages.Request with the conversation it continues.

A conversation longer than the context is cut at whole turns, oldest first, unless `truncation` is "disabled".
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import msgspec

from gateway.edge.identity import new_id, new_root, root_of
from gateway.edge.schema.body import check_depth
from gateway.edge.schema.chat import check_salt
from gateway.edge.schema.content import check_number
from gateway.edge.schema.grammar import bind_format
from gateway.edge.schema.input_tools import inherited, kept, latest, parted
from gateway.edge.schema.items import Item, translate_items
from gateway.edge.schema.pictures import Pictures
from gateway.edge.schema.response_stream import ResponseStreamOptions
from gateway.edge.schema.sampling import (
    SamplingFields,
    check_budget,
    check_effort,
    check_template_kwargs,
    fail,
    token_limit,
    translate_sampling,
)
from gateway.edge.schema.tier import priority_of
from gateway.edge.schema.tools import is_unasked, plan_tools
from gateway.edge.schema.unknown import Misleading
from wire.messages import MAX_METADATA, ConversationRef, Request, SamplingParams
from wire.model_card import ModelCard

LOGPROBS = "message.output_text.logprobs"
IMAGE_URLS = "message.input_image.image_url"
INCLUDES = frozenset(
    {
        LOGPROBS,
        "reasoning.encrypted_content",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        IMAGE_URLS,
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)
_UNSAID: dict[str, dict[str, Any]] = {"function": {"parameters": None, "strict": False}}  # clients read them always
Summary = Literal["auto", "concise", "detailed"]
Tier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]


class Reasoning(msgspec.Struct, kw_only=True):
    """How much to think, and whether the thoughts come as a summary."""

    effort: str | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    max_tokens: int | None = None


class ConversationIn(msgspec.Struct, kw_only=True):
    """A conversation given as an object."""

    id: str


class Text(msgspec.Struct, kw_only=True):
    """Options of the text."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class CacheOptions(msgspec.Struct, kw_only=True):
    """How long and where prompts are cached, which the server decides; `prewarm` would make no answer."""

    prewarm: bool | None = None


class ResponsesRequest(SamplingFields, kw_only=True):
    """The body; what is not listed is refused or ignored by unknown.py."""

    moved: ClassVar[dict[str, Misleading]] = {
        "logprobs": Misleading(f"use top_logprobs, or include {LOGPROBS}", (False,)),
        "max_completion_tokens": Misleading("use max_output_tokens"),
        "max_tokens": Misleading("use max_output_tokens"),
        "messages": Misleading("use input"),
        "n": Misleading("a response is one answer", (1,)),
        "reasoning_effort": Misleading("use reasoning.effort"),
        "response_format": Misleading("use text.format"),
        "thinking_token_budget": Misleading("use reasoning.max_tokens"),
    }
    model: str
    input: str | list[Item] | None = None
    instructions: str | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationIn | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    include: list[str] | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    metadata: dict[str, str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: Tier | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: CacheOptions | None = None
    safety_identifier: str | None = None
    user: str | None = None
    prompt: Any = None
    context_management: list[Any] | None = None
    moderation: Any = None
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None

    @property
    def is_resumable(self) -> bool:
        """Tell whether the client may come back to the stream of this response."""
        return self.stream_options is not None and bool(self.stream_options.resumable)


def translate_responses(
    body: ResponsesRequest,
    card: ModelCard,
    *,
    tenant: str = "",
    before: Sequence[dict[str, Any]] = (),
    pictures: Pictures | None = None,
) -> Request:
    """Check the body and return the request. Raises InvalidRequestError naming the field.

    `before`: tools that stood in the input of the responses that it goes on from. Pictures go to `pictures`.
    """
    _refuse_unsupported(body)
    reasoning = body.reasoning or Reasoning()
    said, own = parted(body.input, "input")
    more = latest([*inherited(before, body.tools), *own])
    conversation = _conversation(body, with_tools=bool(more))
    messages = translate_items(said, "input", root=root_of(conversation.response_id), pictures=pictures)
    continues = bool(conversation.conversation_id or conversation.previous_response_id)
    check_number(messages, "input", least=0 if continues else 1)
    max_tokens = token_limit(max_output_tokens=body.max_output_tokens)
    sampling = translate_sampling(body, card, max_tokens=max_tokens, logprobs=_logprobs(body))
    tools = plan_tools(body.tools, body.tool_choice, body.parallel_tool_calls, card, more=more, is_response=True)
    created_at = time.time()
    return Request(
        model=card.name,
        messages=messages,
        instructions=body.instructions,
        tools=tools.tools,
        tool_forms=tools.forms,
        parallel_tool_calls=tools.parallel,
        template_kwargs=check_template_kwargs(body.chat_template_kwargs),
        sampling=tools.bind(bind_format(sampling, body, body.text.format if body.text else None, "text.format")),
        effort=check_effort(reasoning.effort, "reasoning.effort"),
        budget_tokens=check_budget(reasoning.max_tokens, "reasoning.max_tokens"),
        conversation=conversation,
        tenant=tenant,
        cache_salt=check_salt(body.cache_salt),
        prompt_cache_key=body.prompt_cache_key or "",
        priority=priority_of(body.service_tier),
        created_at=created_at,
        reply=_echo(body, card.name, conversation, sampling, created_at) | kept(more),
        unread_limit_s=(body.stream_options and body.stream_options.unread_limit_s) or 0.0,
    )


def check_metadata(metadata: dict[str, str] | None) -> dict[str, str]:
    """Return the metadata: at most 16 pairs, keys up to 64 characters, values up to 512."""
    if len(metadata or ()) > MAX_METADATA:
        raise fail("metadata", f"at most {MAX_METADATA} pairs.")
    for key, value in (metadata or {}).items():
        if len(key) > 64 or len(value) > 512:
            raise fail(f"metadata.{key[:64]}", "keys have at most 64 characters and values 512.")
    return metadata or {}


def check_include(include: list[str] | None, param: str = "include") -> None:
    """Refuse what nobody could include."""
    for at, name in enumerate(include or ()):
        if name not in INCLUDES:
            raise fail(
                f"{param}[{at}]",
                f"{name[:80]!r} is nothing that can be included; known are {', '.join(sorted(INCLUDES))}.",
            )


def _refuse_unsupported(body: ResponsesRequest) -> None:
    if body.background and body.store is False:
        raise fail("background", "needs the response to be stored: leave out store: false.")
    if body.prompt is not None:
        raise fail("prompt", "stored prompts are not supported.")
    if body.context_management:
        raise fail("context_management", "is not supported; truncation: auto keeps a conversation within the context.")
    if body.prompt_cache_options is not None and body.prompt_cache_options.prewarm:
        raise fail("prompt_cache_options.prewarm", "is not supported; every answer warms the cache for the next.")
    if body.moderation is not None:
        raise fail("moderation", "is not supported; the server's safety policy holds for all requests.")
    if body.chat_template is not None:
        raise fail("chat_template", "the server's template cannot be replaced.")
    if body.stream_options is not None and not body.stream:
        raise fail("stream_options", "is only allowed with stream: true.")
    if body.stream_options is not None:
        body.stream_options.check(background=bool(body.background), store=body.store is not False)
    if body.max_tool_calls is not None and not 1 <= body.max_tool_calls < 2**31:
        raise fail("max_tool_calls", f"must be at least 1, not {body.max_tool_calls}.")
    for name, limit in (("prompt_cache_key", 512), ("safety_identifier", 128)):
        if len(getattr(body, name) or "") > limit:
            raise fail(name, f"must have at most {limit} characters.")
    check_include(body.include)
    check_depth(body.chat_template_kwargs, "chat_template_kwargs")
    check_depth(body.tool_choice, "tool_choice")
    check_depth(body.text.format if body.text else None, "text.format")
    check_metadata(body.metadata)


def _conversation(body: ResponsesRequest, *, with_tools: bool) -> ConversationRef:
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
        response_id=new_id("resp", root_of(before) if before else new_root(), with_tools=with_tools),
        truncation=body.truncation or "auto",
    )


def _logprobs(body: ResponsesRequest) -> int | None:
    """Log probabilities come when `include` asks for them or `top_logprobs` is above 0."""
    wanted = LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
    return (body.top_logprobs or 0) if wanted else None


def _echo(
    body: ResponsesRequest, model: str, reference: ConversationRef, sampling: SamplingParams, created_at: float
) -> dict[str, Any]:
    """Return the fields of a response that repeat what was asked for, or say what holds instead."""
    reasoning, text = body.reasoning or Reasoning(), body.text or Text()
    return {
        "id": reference.response_id,
        "object": "response",
        "created_at": int(created_at),
        "background": bool(body.background),
        "conversation": {"id": reference.conversation_id} if reference.conversation_id else None,
        "instructions": body.instructions,
        "max_output_tokens": sampling.max_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": reference.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_retention": body.prompt_cache_retention,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary or reasoning.generate_summary},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": reference.store,
        "temperature": sampling.temperature,
        "text": {"format": text.format or {"type": "text"}, "verbosity": text.verbosity or "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": [_UNSAID.get(str(tool.get("type")), {}) | tool for tool in body.tools or () if not is_unasked(tool)],
        "top_logprobs": sampling.logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": reference.truncation,
        "user": body.user,
    }
