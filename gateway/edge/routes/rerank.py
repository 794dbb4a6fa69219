"""POST /v1/rerank and /score: how well documents answer a query, by a reranker or by the vectors of an embedder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.attended import attended
from gateway.edge.desks.embeddings import Vectors
from gateway.edge.edge import Edge
from gateway.edge.identity import tenant_of
from gateway.edge.jsontext import to_json
from gateway.edge.safety.screening import screen
from gateway.edge.schema.body import read_as
from gateway.edge.schema.rerank import (
    RerankRequest,
    ScoreRequest,
    rerank_reply,
    score_reply,
    translate_rerank,
    translate_score,
)
from gateway.edge.tracing import trace_headers
from wire.messages import Request as WireRequest
from wire.threads import in_thread

Show = Callable[[WireRequest, Vectors], dict[str, Any]]


async def rerank(request: Request) -> Response:
    """Answer with the documents that fit a query best; a client that leaves cancels its request."""
    edge: Edge = request.app.state.edge
    body = await read_as(request, RerankRequest, edge.settings.max_body_bytes)
    wanted = translate_rerank(body, edge.served.scorer(body.model), tenant=tenant_of(request))
    return await _answer(edge, request, wanted, "rerank", lambda asked, found: rerank_reply(body, asked, found))


async def score(request: Request) -> Response:
    """Answer with a score for each pair of texts; a client that leaves cancels its request."""
    edge: Edge = request.app.state.edge
    body = await read_as(request, ScoreRequest, edge.settings.max_body_bytes)
    wanted = translate_score(body, edge.served.scorer(body.model), tenant=tenant_of(request))
    return await _answer(edge, request, wanted, "score", score_reply)


async def _answer(edge: Edge, request: Request, wanted: WireRequest, operation: str, show: Show) -> Response:
    async def work() -> Response:
        screened = await screen(wanted, edge.safety, "input")
        found = await edge.embed(screened, operation, parent=trace_headers(request.headers))
        raw = await in_thread(lambda: to_json(show(screened, found)))
        return Response(raw, media_type="application/json")

    return await attended(request, work)
