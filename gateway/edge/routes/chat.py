"""POST /v1/chat/completions; with Last-Event-ID, the rest of a stream that was cut off."""

from __future__ import annotations

from starlette.requests import Request

from gateway.edge.completion import GenerationResponse
from gateway.edge.edge import Edge
from gateway.edge.identity import tenant_of
from gateway.edge.places import Place, parse_place
from gateway.edge.resumable import Resumable
from gateway.edge.safety.screening import screen
from gateway.edge.schema.body import read_as, translated, warn
from gateway.edge.schema.chat import ChatRequest, translate_chat
from gateway.edge.schema.chat_reply import ChatReply
from gateway.edge.tracing import trace_headers
from wire.messages import Request as Begun


async def create_chat_completion(request: Request) -> GenerationResponse:
    """Answer a chat request, as a stream or whole, or go on with a stream."""
    edge: Edge = request.app.state.edge
    body = await read_as(request, ChatRequest, edge.seeing.max_body_bytes)
    if body.store:
        warn(request, "store: chat completions are not kept, responses are")
    model = edge.served.model(body.model)
    max_choices, pictures = edge.settings.max_choices, edge.seeing.pictures(body.model)
    wanted = await translated(
        request, lambda: translate_chat(body, model.card, max_choices=max_choices, pictures=pictures)
    )
    came_from = request.headers.get("last-event-id")
    if came_from:
        return _resumed(request, body, parse_place(came_from))
    warn(request, *await edge.grammars.admit(wanted))
    wanted = await screen(wanted, edge.safety, "messages")
    stream = bool(body.stream)
    resumable = Resumable(edge.lingering) if body.stream_options is not None and body.stream_options.resumable else None
    if resumable is not None:
        wanted = resumable.mark(wanted)
    parent = trace_headers(request.headers)
    reply = ChatReply(body, wanted, model.vocabulary, reasoning_names=edge.settings.reasoning_fields)
    return GenerationResponse(
        lambda: edge.generate(wanted, reply, operation="chat", stream=stream, parent=parent, images=pictures.images),
        stream=stream,
        settings=edge.settings,
        resumable=resumable,
    )


def _resumed(request: Request, body: ChatRequest, seen: Place) -> GenerationResponse:
    """Go on behind the place that the client has seen; the body is the one that began the stream."""
    edge: Edge = request.app.state.edge
    vocabulary, names = edge.served.model(body.model).vocabulary, edge.settings.reasoning_fields
    resumable = Resumable(edge.lingering, seen)

    def reply_of(begun: Begun) -> ChatReply:
        resumable.check(begun)
        return ChatReply(body, begun, vocabulary, reasoning_names=names)

    return GenerationResponse(
        lambda: edge.resume(seen.partition, seen.request_id, reply_of, operation="chat", tenant=tenant_of(request)),
        stream=True,
        settings=edge.settings,
        resumable=resumable,
    )
