"""What comes out, as Structs: the OpenAPI document is made of them and the tests hold every answer to it.

Answers are built as plain dictionaries, which is what encoding them costs least as; so these say what those must be.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class Answer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base: an answer has no fields but these."""


class PromptDetails(Answer):
    """Where prompt tokens came from."""

    cached_tokens: int


class CompletionDetails(Answer):
    """What generated tokens were for."""

    reasoning_tokens: int
    accepted_prediction_tokens: int | msgspec.UnsetType = msgspec.UNSET
    rejected_prediction_tokens: int | msgspec.UnsetType = msgspec.UNSET


class Usage(Answer):
    """Tokens of a request, and our bill."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    headrace: dict[str, Any]


class TopLogprob(Answer):
    """A likely token."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """The chosen token, and the likely ones."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    """Log probabilities of a choice."""

    content: list[TokenLogprob]
    refusal: None


class CalledFunction(Answer):
    """Name and arguments, as the model wrote them."""

    name: str
    arguments: str


class CalledTool(Answer, tag="function", tag_field="type"):
    """A call of a function."""

    id: str
    function: CalledFunction


class CustomInput(Answer):
    """Name and free text."""

    name: str
    input: str


class CalledCustom(Answer, tag="custom", tag_field="type"):
    """A call of a custom tool."""

    id: str
    custom: CustomInput


class AssistantMessage(Answer):
    """What was said."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[CalledTool | CalledCustom] | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(Answer):
    """One answer of several."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class PromptLogprob(Answer):
    """A token at a place of the prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class ChatCompletion(Answer):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType | None = msgspec.UNSET


class LogprobColumns(Answer):
    """Log probabilities of a text, token by token."""

    text_offset: list[int]
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]


class TextChoice(Answer):
    """One text of several."""

    index: int
    text: str
    logprobs: LogprobColumns | None
    finish_reason: FinishReason
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType | None = msgspec.UNSET


class TextCompletion(Answer):
    """The answer of /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage


class CountedInput(Answer):
    """The answer of /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class Tokenized(Answer):
    """The answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Answer):
    """The answer of /detokenize."""

    prompt: str


class TokenizerInfo(Answer):
    """How prompts of a model are written."""

    bos_token: str | None
    eos_token: str | None
    chat_template: str | None
    model_max_length: int


class ModelObject(msgspec.Struct, kw_only=True):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    context_length: int
    image_limits: dict[str, int] | None


class ModelList(Answer):
    """The models that are served. With the header `anthropic-version` they come in Anthropic's shape."""

    object: Literal["list"]
    data: list[ModelObject]


class ErrorFields(Answer):
    """What went wrong; `param` names the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(Answer):
    """Any error."""

    error: ErrorFields


class Readiness(Answer):
    """Whether requests can be served, and what is missing."""

    status: Literal["ready", "not ready"]
    missing: list[str]


class Moderation(msgspec.Struct, kw_only=True):
    """What the safety rules found in each text."""

    id: str
    model: str
    results: list[dict[str, Any]]


class Stored(msgspec.Struct, kw_only=True):
    """A stored object, in OpenAI's shape."""

    id: str
    object: str


class StoredItem(msgspec.Struct, kw_only=True):
    """An item of a conversation: a message, a call, its result, each with its own fields."""

    id: str
    type: str


class Page(msgspec.Struct, kw_only=True):
    """A list of objects; `after` takes `last_id`."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    has_more: bool
