"""/v1/responses: create, read, delete, and the items that went in."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.completion import GenerationResponse
from gateway.edge.edge import Edge
from gateway.edge.identity import partition_of, root_of
from gateway.edge.jsontext import json_response
from gateway.edge.references import resolve
from gateway.edge.routes.paging import read_page
from gateway.edge.schema.body import decode_body, read_body
from gateway.edge.schema.responses import ResponsesRequest, translate_responses
from gateway.edge.schema.responses_reply import ResponsesReply
from gateway.edge.screening import screen
from gateway.edge.tracing import trace_headers


async def create_response(request: Request) -> GenerationResponse:
    """Answer a request of the Responses API, as a stream or whole."""
    edge: Edge = request.app.state.edge
    body = await decode_body(await read_body(request, edge.settings.max_body_bytes), ResponsesRequest)
    card = edge.model(body.model).card
    body.input = await resolve(body.input, edge.history, tenant="", partitions=edge.settings.partitions)
    wanted = translate_responses(body, card)
    wanted = await screen(wanted, edge.safety, "input")
    await edge.try_grammar(wanted)
    stream = bool(body.stream)
    parent = trace_headers(request.headers)
    reply = ResponsesReply(wanted)
    return GenerationResponse(
        lambda: edge.generate(wanted, reply, operation="chat", stream=stream, parent=parent),
        stream=stream,
        settings=edge.settings,
    )


async def get_response(request: Request) -> Response:
    """Return a stored response."""
    return await _ask(request, "get_response")


async def delete_response(request: Request) -> Response:
    """Delete a stored response."""
    return await _ask(request, "delete_response")


async def list_input_items(request: Request) -> Response:
    """Return the items that went into a stored response."""
    return await _ask(request, "list_input_items", **read_page(request, order="desc"))


async def _ask(request: Request, op: str, **args: Any) -> Response:
    edge: Edge = request.app.state.edge
    response_id = request.path_params["id"]
    partition = partition_of(root_of(response_id), edge.settings.partitions)
    return json_response(await edge.history.call(partition, op, id=response_id, **args))
