"""POST /v1/messages, inwards: Anthropic's body -> wire.messages.Request.

Without `thinking` there is none, as this dialect has it.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

import msgspec

from gateway.edge.schema.anthropic_content import AnthropicMessage, Block, text_blocks, translate_content
from gateway.edge.schema.begun import check_begun
from gateway.edge.schema.content import check_number
from gateway.edge.schema.grammar import bind_format
from gateway.edge.schema.kinds import missing, must_be, shown
from gateway.edge.schema.pictures import Pictures
from gateway.edge.schema.sampling import SamplingFields, check_budget, fail, token_limit, translate_sampling
from gateway.edge.schema.tier import priority_of
from gateway.edge.schema.tools import plan_tools
from gateway.edge.schema.unknown import Misleading
from wire.errors import InvalidRequestError
from wire.messages import Request, SamplingParams
from wire.model_card import ModelCard

_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
_THINKING = ("enabled", "disabled", "adaptive", "between_tools")


class Thinking(msgspec.Struct, kw_only=True):
    """Whether to think, and how much."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    """Which tools must or may be called."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(msgspec.Struct, kw_only=True):
    """Who asks."""

    user_id: str | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    """Effort and form of the answer."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class MessagesRequest(msgspec.Struct, kw_only=True):
    """The body, also of count_tokens, where `max_tokens` is not needed."""

    moved: ClassVar[dict[str, Misleading]] = {
        "compaction": Misleading("is not supported; ask for a summary in a message"),
        "logprobs": Misleading("is not of this dialect", (False,)),
        "max_completion_tokens": Misleading("use max_tokens"),
        "n": Misleading("a message is one answer", (1,)),
        "reasoning_effort": Misleading("use thinking and output_config.effort"),
        "response_format": Misleading("use output_config.format"),
        "stop": Misleading("use stop_sequences", ([],)),
        "thread": Misleading("messages are not kept; send all of them"),
    }
    model: str
    messages: list[AnthropicMessage]
    max_tokens: int | None = None
    system: str | list[Block] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    container: Any = None
    mcp_servers: list[Any] | None = None


def translate_messages(
    body: MessagesRequest, card: ModelCard, *, counting: bool = False, pictures: Pictures | None = None
) -> Request:
    """Check the body and return the request; its pictures go to `pictures`.

    Raises InvalidRequestError naming the field.
    """
    if not counting and body.max_tokens is None:
        raise missing("max_tokens", "an integer")
    _refuse_unsupported(body)
    check_number(body.messages)
    messages = [
        found
        for at, message in enumerate(body.messages)
        for found in translate_content(message, f"messages[{at}]", pictures)
    ]
    check_number(messages)
    continues = messages[-1].role == "assistant"
    choice = body.tool_choice or ToolChoice(type="auto")
    tools = plan_tools(_tools(body.tools), _choice(choice), not choice.disable_parallel_tool_use, card)
    effort, budget, shows = _thinking(body)
    sampling = tools.bind(_sampling(body, card))
    if continues:
        check_begun(messages, f"messages[{len(body.messages) - 1}]", sampling, effort=effort, budget=budget)
    return Request(
        model=card.name,
        messages=tuple(messages),
        instructions=text_blocks(body.system, "system") if body.system else None,
        tools=tools.tools,
        parallel_tool_calls=tools.parallel,
        sampling=sampling,
        effort=effort,
        budget_tokens=budget,
        include_reasoning=shows,
        priority=priority_of(body.service_tier),
        continues=continues,
        created_at=time.time(),
    )


def _refuse_unsupported(body: MessagesRequest) -> None:
    if body.container is not None:
        raise fail("container", "is not supported.")
    if body.mcp_servers:
        raise fail("mcp_servers", "are not supported; declare their tools.")


def _sampling(body: MessagesRequest, card: ModelCard) -> SamplingParams:
    fields = SamplingFields(temperature=body.temperature, top_p=body.top_p, top_k=body.top_k, stop=body.stop_sequences)
    max_tokens = token_limit(max_tokens=body.max_tokens)
    try:
        sampling = translate_sampling(fields, card, max_tokens=max_tokens, logprobs=None)
    except InvalidRequestError as error:
        if error.param != "stop":
            raise
        raise fail("stop_sequences", error.message.removeprefix("stop: ")) from None
    form, param = body.output_config.format if body.output_config else None, "output_config.format"
    if body.output_format is not None:  # what the field was called before it moved
        if form is not None:
            raise fail("output_format", "cannot be given together with output_config.format.")
        form, param = body.output_format, "output_format"
    return bind_format(sampling, fields, form, param)


def _thinking(body: MessagesRequest) -> tuple[str | None, int | None, bool]:
    """Return effort, budget in tokens, and whether the thinking is shown."""
    thinking = body.thinking or Thinking(type="disabled")
    if thinking.type not in _THINKING:
        raise fail("thinking.type", f"must be one of {', '.join(_THINKING)}, not {thinking.type[:40]!r}.")
    shows = thinking.display != "omitted"
    if thinking.type == "enabled":
        if thinking.budget_tokens is None:
            raise missing("thinking.budget_tokens", "an integer")
        if body.max_tokens is not None and thinking.budget_tokens >= body.max_tokens:
            raise fail("thinking.budget_tokens", "must be below max_tokens.")
        return None, check_budget(thinking.budget_tokens, "thinking.budget_tokens"), shows
    if thinking.type == "disabled":
        return "none", None, shows
    effort = body.output_config.effort if body.output_config else None
    if effort is not None and effort not in _EFFORTS:
        raise fail("output_config.effort", f"must be one of {', '.join(_EFFORTS)}, not {effort[:40]!r}.")
    return _EFFORTS.get(effort or ""), None, shows


def _tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Return tools in OpenAI's shape."""
    found: list[dict[str, Any]] = []
    for at, tool in enumerate(tools or ()):
        kind = tool.get("type") or "custom"
        if kind != "custom":
            raise fail(f"tools[{at}].type", f"{shown(kind)} is not supported; this server runs no tools itself.")
        if "input_schema" not in tool:
            raise missing(f"tools[{at}].input_schema", "a JSON schema, an object")
        if not isinstance(tool["input_schema"], dict):
            raise must_be(f"tools[{at}].input_schema", "a JSON schema, an object", tool["input_schema"])
        if any(tool.get("name") == other["name"] for other in found):
            raise fail(f"tools[{at}].name", "stands twice; tool names must be unique.")
        function = {"name": tool.get("name"), "parameters": tool["input_schema"]}
        function |= {name: tool[name] for name in ("description", "strict") if name in tool}
        found.append({"type": "function", **function})
    return found


def _choice(choice: ToolChoice) -> Any:
    words = {"auto": "auto", "any": "required", "none": "none"}
    if choice.type == "tool":
        if choice.name is None:
            raise missing("tool_choice.name", "the name of one of the tools")
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type not in words:
        raise fail("tool_choice.type", f"must be one of auto, any, tool, none, not {choice.type[:40]!r}.")
    return words[choice.type]
