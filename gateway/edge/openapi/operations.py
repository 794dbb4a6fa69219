"""What each route takes and gives, for the OpenAPI document: bodies, answers, queries, errors, and what leads where."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.edge.schema import answers
from gateway.edge.schema.adapters import LoadAdapterRequest, UnloadAdapterRequest
from gateway.edge.schema.chat import MAX_CACHE_KEY, ChatRequest
from gateway.edge.schema.completions import CompletionRequest
from gateway.edge.schema.content import MAX_MESSAGES
from gateway.edge.schema.control import ControlRequest
from gateway.edge.schema.conversations import CreateConversation, CreateItems, UpdateConversation
from gateway.edge.schema.embeddings import EmbeddingList, EmbeddingRequest
from gateway.edge.schema.message_answers import AnthropicAnswer, CountedTokens
from gateway.edge.schema.messages import MessagesRequest
from gateway.edge.schema.moderations import ModerationRequest
from gateway.edge.schema.paging import DEFAULT_LIMIT, MAX_LIMIT
from gateway.edge.schema.rerank import Ranking, RerankRequest, ScoreList, ScoreRequest
from gateway.edge.schema.responses import INCLUDES, ResponsesRequest
from gateway.edge.schema.sampling import EFFORTS, MAX_TOP_LOGPROBS, RANGES
from gateway.edge.schema.tier import MAX_PRIORITY, PRIORITIES
from gateway.edge.schema.tokenize import DetokenizeRequest, TokenizeRequest
from gateway.edge.schema.tools import MAX_TOOLS

ERRORS = {
    400: "The request can never work; `param` names the field at fault.",
    401: "The API key is missing or unknown.",
    403: "Host, Origin or key may not do this.",
    404: "The model or the stored object is unknown.",
    409: "Somebody else changes the object just now.",
    413: "The body is larger than this server takes.",
    415: "The body is compressed in a way that is not read; `Accept-Encoding` names those that are.",
    429: "The server, or what this key may use, is full; `Retry-After` says when to come back.",
    500: "A fault of the server.",
    503: "No replica serves this model now, or the server is stopping.",
    504: "The deadline has passed.",
}
_ANY = (400, 401, 403, 429, 500, 503)
_WORK = (*_ANY, 404, 413, 415, 504)
_STORED = (*_ANY, 404, 409, 413, 415, 504)


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """What a route takes and gives; `streams`: as Server-Sent Events too.

    `links`: operations that take the answer's `id`, as their parameter of this name.
    """

    body: Any = None
    answer: Any = None
    streams: bool = False
    kind: str = "application/json"
    status: int = 200
    body_needed: bool = True
    query: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    links: tuple[str, ...] = ()


_PAGE = ("limit", "after")
_ITEMS = (*_PAGE, "order", "include")
_OF_RESPONSE = ("get_response", "cancel_response", "delete_response", "list_input_items")
_OF_CONVERSATION = ("get_conversation", "update_conversation", "delete_conversation", "list_items", "create_items")

OPERATIONS: dict[str, Operation] = {
    "create_chat_completion": Operation(body=ChatRequest, answer=answers.ChatCompletion, streams=True, errors=_WORK),
    "create_completion": Operation(body=CompletionRequest, answer=answers.TextCompletion, streams=True, errors=_WORK),
    "create_response": Operation(
        body=ResponsesRequest, answer=answers.Stored, streams=True, errors=_STORED, links=_OF_RESPONSE
    ),
    "get_response": Operation(
        answer=answers.Stored, streams=True, query=("include", "stream", "starting_after"), errors=_STORED
    ),
    "cancel_response": Operation(answer=answers.Stored, errors=_STORED),
    "delete_response": Operation(answer=answers.Stored, errors=_STORED),
    "list_input_items": Operation(answer=answers.Page, query=_ITEMS, errors=_STORED),
    "count_input_tokens": Operation(body=ResponsesRequest, answer=answers.CountedInput, errors=_STORED),
    "create_conversation": Operation(
        body=CreateConversation, answer=answers.Stored, body_needed=False, errors=_STORED, links=_OF_CONVERSATION
    ),
    "get_conversation": Operation(answer=answers.Stored, errors=_STORED),
    "update_conversation": Operation(body=UpdateConversation, answer=answers.Stored, errors=_STORED),
    "delete_conversation": Operation(answer=answers.Stored, errors=_STORED),
    "list_conversations": Operation(answer=answers.Page, query=_PAGE, errors=_STORED),
    "list_items": Operation(answer=answers.Page, query=_ITEMS, errors=_STORED),
    "create_items": Operation(body=CreateItems, answer=answers.Page, query=("include",), errors=_STORED),
    "get_item": Operation(answer=answers.StoredItem, query=("include",), errors=_STORED),
    "delete_item": Operation(answer=answers.Stored, errors=_STORED),
    "create_embeddings": Operation(body=EmbeddingRequest, answer=EmbeddingList, errors=_WORK),
    "rerank": Operation(body=RerankRequest, answer=Ranking, errors=_WORK),
    "score": Operation(body=ScoreRequest, answer=ScoreList, errors=_WORK),
    "create_moderation": Operation(body=ModerationRequest, answer=answers.Moderation, errors=_WORK),
    "create_message": Operation(body=MessagesRequest, answer=AnthropicAnswer, streams=True, errors=_WORK),
    "count_tokens": Operation(body=MessagesRequest, answer=CountedTokens, errors=_WORK),
    "tokenize": Operation(body=TokenizeRequest, answer=answers.Tokenized, errors=_WORK),
    "detokenize": Operation(body=DetokenizeRequest, answer=answers.Detokenized, errors=_WORK),
    "tokenizer_info": Operation(answer=answers.TokenizerInfo, query=("model",), errors=(*_ANY, 404)),
    "control_request": Operation(body=ControlRequest, answer=answers.Stored, status=202, errors=_WORK),
    "load_adapter": Operation(body=LoadAdapterRequest, kind="text/plain", errors=(*_ANY, 409, 413, 415, 504)),
    "unload_adapter": Operation(body=UnloadAdapterRequest, kind="text/plain", errors=(*_ANY, 404, 413, 415)),
    "list_models": Operation(answer=answers.ModelList, errors=_ANY),
    "get_model": Operation(answer=answers.ModelObject, errors=(*_ANY, 404)),
    "metrics": Operation(kind="text/plain"),
    "ready": Operation(answer=answers.Readiness, errors=(503,)),
}

QUERIES: dict[str, dict[str, Any]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    "after": {"type": "string"},
    "order": {"enum": ["asc", "desc"], "default": "desc"},
    "include": {"type": "array", "items": {"enum": sorted(INCLUDES)}},
    "stream": {"type": "boolean", "default": False},
    "starting_after": {"type": "integer", "minimum": 0, "maximum": 999_999_999},
    "model": {"type": "string"},
}

# What bodies are held to beyond their types; null and other kinds of a field are not touched by these words.
LIMITS: dict[str, dict[str, Any]] = {
    **{name: {"minimum": low, "maximum": high} for name, (low, high) in RANGES.items()},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"minimum": -1},
    "repetition_penalty": {"exclusiveMinimum": 0, "maximum": 10},
    "min_tokens": {"minimum": 0},
    "max_tokens": {"minimum": 0},
    "max_completion_tokens": {"minimum": 1},
    "max_output_tokens": {"minimum": 1},
    "max_tool_calls": {"minimum": 1},
    "n": {"minimum": 1},
    "best_of": {"minimum": 1},
    "logprobs": {"minimum": 0, "maximum": MAX_TOP_LOGPROBS},
    "prompt_logprobs": {"minimum": 0, "maximum": MAX_TOP_LOGPROBS},
    "priority": {"minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY},
    "thinking_token_budget": {"minimum": 0, "maximum": 2**31 - 1},
    "dimensions": {"minimum": 1},
    "top_n": {"minimum": 1},
    "reasoning_effort": {"enum": [*EFFORTS, None]},
    "service_tier": {"enum": [*PRIORITIES, None]},
    "messages": {"minItems": 1, "maxItems": MAX_MESSAGES},
    "tools": {"maxItems": MAX_TOOLS},
    "allowed_token_ids": {"minItems": 1},
    "cache_salt": {"minLength": 1, "maxLength": 256},
    "prompt_cache_key": {"maxLength": MAX_CACHE_KEY},
}
