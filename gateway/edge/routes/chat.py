"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.requests import Request

from gateway.edge.completion import GenerationResponse
from gateway.edge.edge import Edge
from gateway.edge.schema.body import read_as
from gateway.edge.schema.chat import ChatRequest, translate_chat
from gateway.edge.schema.chat_reply import ChatReply
from gateway.edge.screening import screen
from gateway.edge.tracing import trace_headers


async def create_chat_completion(request: Request) -> GenerationResponse:
    """Answer a chat request, as a stream or whole."""
    edge: Edge = request.app.state.edge
    body = await read_as(request, ChatRequest, edge.settings.max_body_bytes)
    model = edge.model(body.model)
    wanted = translate_chat(body, model.card, max_choices=edge.settings.max_choices)
    await edge.try_grammar(wanted)
    wanted = await screen(wanted, edge.safety, "messages")
    stream = bool(body.stream)
    parent = trace_headers(request.headers)
    reply = ChatReply(body, wanted, model.vocabulary, reasoning_names=edge.settings.reasoning_fields)
    return GenerationResponse(
        lambda: edge.generate(wanted, reply, operation="chat", stream=stream, parent=parent),
        stream=stream,
        settings=edge.settings,
    )
