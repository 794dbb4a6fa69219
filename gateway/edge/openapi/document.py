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

from gateway.edge.openapi.operations import ERRORS, LIMITS, OPERATIONS, QUERIES, Operation
from gateway.edge.schema import answers
from gateway.edge.schema.message_answers import AnthropicError

_REF = "#/components/schemas/{name}"


def document(routes: Iterable[Any]) -> dict[str, Any]:
    """Return the document of these routes."""
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
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(route: Route, path: str) -> dict[str, Any]:
    name = route.name
    known = OPERATIONS.get(name, Operation())
    summary, _, rest = (inspect.getdoc(route.endpoint) or name).partition("\n")
    found: dict[str, Any] = {"operationId": name, "summary": summary, "responses": _responses(known, path)}
    if rest.strip():
        found["description"] = rest.strip()
    names = re.findall(r"{(\w+)}", path)
    parameters = [{"name": one, "in": "path", "required": True, "schema": {"type": "string"}} for one in names]
    parameters += [{"name": one, "in": "query", "schema": QUERIES[one]} for one in known.query]
    if parameters:
        found["parameters"] = parameters
    if known.body is not None:
        found["requestBody"] = {"required": known.body_needed, "content": _json(_ref(known.body.__name__))}
    return found


def _responses(known: Operation, path: str) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "The answer.", "content": _content(known)}
    if known.links:
        links = {name: {"operationId": name, "parameters": {"id": "$response.body#/id"}} for name in known.links}
        good["links"] = links
    found = {str(known.status): good}
    error = "AnthropicError" if path.startswith("/v1/messages") else "Error"
    if known.answer is answers.Readiness:
        error = "Readiness"
    for status in sorted(known.errors):
        found[str(status)] = {"description": ERRORS[status], "content": _json(_ref(error))}
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
    bodies = {operation.body for operation in OPERATIONS.values() if operation.body is not None}
    given = {operation.answer for operation in OPERATIONS.values() if operation.answer is not None}
    types = sorted({answers.Error, AnthropicError, *bodies, *given}, key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(types, ref_template=_REF)
    for body in bodies:
        properties = schemas[body.__name__]["properties"]
        for name in properties.keys() & LIMITS.keys():
            properties[name] |= LIMITS[name]
    return schemas
