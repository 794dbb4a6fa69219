"""The OpenAPI 3.1 document: made of the routes there are and of the Structs that their bodies are decoded into."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.routing import Route

from gateway.edge.routes.control import ControlRequest
from gateway.edge.schema import answers
from gateway.edge.schema.chat import ChatRequest
from gateway.edge.schema.completions import CompletionRequest
from gateway.edge.schema.conversations import CreateConversation, CreateItems, UpdateConversation
from gateway.edge.schema.embeddings import EmbeddingRequest
from gateway.edge.schema.messages import MessagesRequest
from gateway.edge.schema.moderations import ModerationRequest
from gateway.edge.schema.responses import ResponsesRequest
from gateway.edge.schema.sampling import RANGES
from gateway.edge.schema.tokenize import DetokenizeRequest, TokenizeRequest

_REF = "#/components/schemas/{name}"


class Operation(msgspec.Struct, frozen=True):
    """What a route takes and gives; `streams`: as Server-Sent Events too, with `stream: true`."""

    body: Any = None
    answer: Any = None
    streams: bool = False
    kind: str = "application/json"


OPERATIONS: dict[str, Operation] = {
    "create_chat_completion": Operation(ChatRequest, answers.ChatCompletion, streams=True),
    "create_completion": Operation(CompletionRequest, answers.TextCompletion, streams=True),
    "create_response": Operation(ResponsesRequest, answers.Stored, streams=True),
    "get_response": Operation(None, answers.Stored),
    "cancel_response": Operation(None, answers.Stored),
    "delete_response": Operation(None, answers.Stored),
    "list_input_items": Operation(None, answers.Page),
    "create_conversation": Operation(CreateConversation, answers.Stored),
    "get_conversation": Operation(None, answers.Stored),
    "update_conversation": Operation(UpdateConversation, answers.Stored),
    "delete_conversation": Operation(None, answers.Stored),
    "list_conversations": Operation(None, answers.Page),
    "list_items": Operation(None, answers.Page),
    "create_items": Operation(CreateItems, answers.Page),
    "get_item": Operation(),
    "delete_item": Operation(None, answers.Stored),
    "create_embeddings": Operation(EmbeddingRequest),
    "create_moderation": Operation(ModerationRequest, answers.Moderation),
    "create_message": Operation(MessagesRequest, answers.AnthropicAnswer, streams=True),
    "count_tokens": Operation(MessagesRequest, answers.CountedTokens),
    "tokenize": Operation(TokenizeRequest, answers.Tokenized),
    "detokenize": Operation(DetokenizeRequest, answers.Detokenized),
    "control_request": Operation(ControlRequest, answers.Stored),
    "list_models": Operation(None, answers.ModelList),
    "get_model": Operation(None, answers.ModelObject),
    "metrics": Operation(kind="text/plain"),
}


def document(routes: Iterable[Any]) -> dict[str, Any]:
    """Return the document of these routes."""
    schemas = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if not isinstance(route, Route) or not route.include_in_schema:
            continue
        path = re.sub(r":\w+}", "}", route.path)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            paths.setdefault(path, {})[method.lower()] = _operation(route, path)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": version("headrace"),
            "description": "Language models over HTTP, in OpenAI's and Anthropic's shapes.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(route: Route, path: str) -> dict[str, Any]:
    name = route.name
    known = OPERATIONS.get(name, Operation())
    summary, _, rest = (inspect.getdoc(route.endpoint) or name).partition("\n")
    error = "AnthropicError" if path.startswith("/v1/messages") else "Error"
    found: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": {"description": "The answer.", "content": _content(known)},
            "default": {"description": "An error.", "content": _json(_ref(error))},
        },
    }
    if rest.strip():
        found["description"] = rest.strip()
    names = re.findall(r"{(\w+)}", path)
    if names:
        found["parameters"] = [
            {"name": one, "in": "path", "required": True, "schema": {"type": "string"}} for one in names
        ]
    if known.body is not None:
        found["requestBody"] = {"required": True, "content": _json(_ref(known.body.__name__))}
    return found


def _content(known: Operation) -> dict[str, Any]:
    if known.kind != "application/json":
        return {known.kind: {"schema": {"type": "string"}}}
    content = _json(_ref(known.answer.__name__) if known.answer is not None else {"type": "object"})
    if known.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return content


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": _REF.format(name=name)}


@cache
def _schemas() -> dict[str, Any]:
    types = [answers.Error, answers.AnthropicError]
    for operation in OPERATIONS.values():
        types += [kind for kind in (operation.body, operation.answer) if kind is not None and kind not in types]
    _, schemas = msgspec.json.schema_components(types, ref_template=_REF)
    for schema in schemas.values():
        for name, (lowest, highest) in RANGES.items():
            if "temperature" in schema.get("properties", {}) and name in schema["properties"]:
                schema["properties"][name] |= {"minimum": lowest, "maximum": highest}
    return schemas
