"""POST /v1/embeddings."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.attended import attended
from gateway.edge.edge import Edge
from gateway.edge.identity import tenant_of
from gateway.edge.jsontext import to_json
from gateway.edge.safety.screening import screen
from gateway.edge.schema.body import read_as
from gateway.edge.schema.embeddings import EmbeddingRequest, embeddings_reply, translate_embeddings
from gateway.edge.tracing import trace_headers
from wire.threads import in_thread


async def create_embeddings(request: Request) -> Response:
    """Answer with a vector for each input; a client that leaves cancels its request."""
    edge: Edge = request.app.state.edge
    body = await read_as(request, EmbeddingRequest, edge.settings.max_body_bytes)
    card = edge.served.embedder(body.model)

    async def work() -> Response:
        wanted = translate_embeddings(body, card, tenant=tenant_of(request))
        wanted = await screen(wanted, edge.safety, "input")
        found = await edge.embed(wanted, "embeddings", parent=trace_headers(request.headers))
        # Numbers of many vectors take long to write down: off the event loop.
        raw = await in_thread(lambda: to_json(embeddings_reply(body, card, found)))
        return Response(raw, media_type="application/json")

    return await attended(request, work)
