"""POST /v1/chat/completions, inwards: OpenAI's body -> wire.messages.Request.

`max_tokens` and `max_completion_tokens` mean the same; given both, the smaller one counts.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from gateway.edge.schema.begun import check_begun
from gateway.edge.schema.body import check_depth
from gateway.edge.schema.content import MessageIn, check_number, translate_message
from gateway.edge.schema.grammar import bind_format
from gateway.edge.schema.pictures import Pictures
from gateway.edge.schema.prediction import translate_prediction
from gateway.edge.schema.sampling import (
    SamplingFields,
    check_budget,
    check_effort,
    check_prompt_logprobs,
    check_template_kwargs,
    fail,
    num_choices,
    token_limit,
    translate_sampling,
)
from gateway.edge.schema.tier import priority_of
from gateway.edge.schema.tools import plan_tools
from wire.messages import Request
from wire.model_card import ModelCard

MAX_CACHE_KEY = 512


class StreamOptions(msgspec.Struct, kw_only=True):
    """Options that only a stream has."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    resumable: bool | None = None


class ChatRequest(SamplingFields, kw_only=True):
    """The body; what is not listed is refused or ignored by unknown.py."""

    model: str
    messages: list[MessageIn]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    reasoning_effort: str | None = None
    thinking_token_budget: int | None = None
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    priority: int | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    store: bool | None = None
    prompt_logprobs: int | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    prediction: dict[str, Any] | None = None


def translate_chat(
    body: ChatRequest, card: ModelCard, *, max_choices: int, pictures: Pictures | None = None
) -> Request:
    """Check the body and return the request; its pictures go to `pictures`.

    Raises InvalidRequestError naming the field.
    """
    check_number(body.messages)
    _refuse_unsupported(body)
    n = num_choices(body.n, max_choices)
    tools = plan_tools(body.tools, body.tool_choice, body.parallel_tool_calls, card)
    sampling = translate_sampling(
        body,
        card,
        n=n,
        max_tokens=token_limit(max_tokens=body.max_tokens, max_completion_tokens=body.max_completion_tokens),
        logprobs=_logprobs(body),
        prompt_logprobs=check_prompt_logprobs(body.prompt_logprobs, stream=bool(body.stream)),
    )
    sampling = tools.bind(bind_format(sampling, body, body.response_format, "response_format"))
    messages = tuple(
        translate_message(message, f"messages[{at}]", pictures) for at, message in enumerate(body.messages)
    )
    effort, budget = check_effort(body.reasoning_effort, "reasoning_effort"), check_budget(body.thinking_token_budget)
    if body.continue_final_message:
        if messages[-1].role != "assistant":
            raise fail("continue_final_message", "the last message must be the assistant's.")
        check_begun(messages, f"messages[{len(messages) - 1}]", sampling, effort=effort, budget=budget)
        effort, budget = "none", None
    return Request(
        model=card.name,
        messages=messages,
        tools=tools.tools,
        tool_forms=tools.forms,
        parallel_tool_calls=tools.parallel,
        template_kwargs=check_template_kwargs(body.chat_template_kwargs),
        sampling=sampling,
        effort=effort,
        budget_tokens=budget,
        continues=bool(body.continue_final_message),
        cache_salt=check_salt(body.cache_salt),
        prompt_cache_key=check_cache_key(body.prompt_cache_key),
        priority=priority_of(body.service_tier, body.priority),
        include_reasoning=body.include_reasoning is not False,
        prediction=translate_prediction(body.prediction),
        created_at=time.time(),
    )


def _refuse_unsupported(body: ChatRequest) -> None:
    if body.stream_options is not None and not body.stream:
        raise fail("stream_options", "is only allowed with stream: true.")
    if body.chat_template is not None:
        raise fail("chat_template", "the server's template cannot be replaced.")
    if body.functions:
        raise fail("functions", "is not supported; use tools.")
    if body.modalities and body.modalities != ["text"]:
        raise fail("modalities", "only ['text'] is supported.")
    if body.add_generation_prompt is not None and body.add_generation_prompt is bool(body.continue_final_message):
        raise fail("add_generation_prompt", "must be true, or false with continue_final_message.")
    check_depth(body.chat_template_kwargs, "chat_template_kwargs")


def check_salt(value: str | None) -> str:
    """Return the cache salt; an empty one would silently share the cache."""
    if value is not None and not 1 <= len(value) <= 256:
        raise fail("cache_salt", "must have 1 to 256 characters.")
    return value or ""


def check_cache_key(value: str | None) -> str:
    """Return the key that brings requests with a common beginning to the same replica."""
    if value is not None and len(value) > MAX_CACHE_KEY:
        raise fail("prompt_cache_key", f"may have {MAX_CACHE_KEY} characters at most, not {len(value)}.")
    return value or ""


def _logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise fail("top_logprobs", "is only allowed with logprobs: true.")
    return (body.top_logprobs or 0) if body.logprobs else None
