"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's dialect."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.completion import GenerationResponse
from gateway.edge.edge import Edge
from gateway.edge.jsontext import json_response
from gateway.edge.safety.screening import screen
from gateway.edge.schema.body import read_as, translated, warn
from gateway.edge.schema.messages import MessagesRequest, translate_messages
from gateway.edge.schema.messages_reply import MessagesReply
from gateway.edge.tracing import trace_headers
from wire.errors import NotFoundError


async def create_message(request: Request) -> GenerationResponse:
    """Answer a request of the Messages API, as a stream or whole."""
    edge: Edge = request.app.state.edge
    body = await read_as(request, MessagesRequest, edge.seeing.max_body_bytes)
    card = edge.served.model(body.model).card
    pictures = edge.seeing.pictures(body.model)
    wanted = await translated(request, lambda: translate_messages(body, card, pictures=pictures))
    warn(request, *await edge.grammars.admit(wanted))
    wanted = await screen(wanted, edge.safety, "messages", system="system")
    stream = bool(body.stream)
    parent = trace_headers(request.headers)
    reply = MessagesReply(wanted.model)
    return GenerationResponse(
        lambda: edge.generate(wanted, reply, operation="chat", stream=stream, parent=parent, images=pictures.images),
        stream=stream,
        settings=edge.settings,
    )


async def batches(_request: Request) -> Response:
    """Say that there are none."""
    raise NotFoundError("Message batches are not supported; send the messages one by one.")


async def count_tokens(request: Request) -> Response:
    """Return how many tokens a request would have."""
    edge: Edge = request.app.state.edge
    body = await read_as(request, MessagesRequest, edge.seeing.max_body_bytes)
    card = edge.served.model(body.model).card
    pictures = edge.seeing.pictures(body.model)
    wanted = await translated(request, lambda: translate_messages(body, card, counting=True, pictures=pictures))
    with edge.admission.slot():
        ids = await edge.tokenizer.token_ids(wanted)
    return json_response({"input_tokens": len(ids)})
