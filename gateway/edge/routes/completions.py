"""POST /v1/completions."""

from __future__ import annotations

from starlette.requests import Request

from gateway.edge.completion import GenerationResponse
from gateway.edge.edge import Edge
from gateway.edge.schema.body import read_as
from gateway.edge.schema.completions import CompletionRequest, translate_completions
from gateway.edge.schema.completions_reply import CompletionsReply
from gateway.edge.screening import screen
from gateway.edge.tracing import trace_headers


async def create_completion(request: Request) -> GenerationResponse:
    """Continue texts, as a stream or whole."""
    edge: Edge = request.app.state.edge
    settings = edge.settings
    body = await read_as(request, CompletionRequest, settings.max_body_bytes)
    model = edge.model(body.model)
    wanted = translate_completions(
        body,
        model.card,
        max_choices=settings.max_choices,
        max_prompts=min(settings.max_prompts, settings.max_inflight),
    )
    await edge.try_grammar(wanted[0])  # the same for all
    wanted = [await screen(one, edge.safety, "prompt") for one in wanted]
    stream = bool(body.stream)
    parent = trace_headers(request.headers)
    reply = CompletionsReply(body, wanted, model.vocabulary)
    return GenerationResponse(
        lambda: edge.generate_all(wanted, reply, operation="text_completion", stream=stream, parent=parent),
        stream=stream,
        settings=settings,
    )
