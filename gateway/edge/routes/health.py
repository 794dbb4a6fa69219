"""/health/live, /health/ready and /metrics: for supervisors, load balancers and Prometheus."""

from __future__ import annotations

import anyio
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.edge import Edge
from gateway.edge.jsontext import json_response
from wire.errors import HeadraceError

_BUS_S = 1.0


async def live(request: Request) -> Response:
    """Answer 200 while the process serves."""
    del request
    return json_response({"status": "ok"})


async def ready(request: Request) -> Response:
    """Answer 200 when requests can be served; otherwise 503 and what is missing."""
    edge: Edge = request.app.state.edge
    missing = ["draining"] if edge.admission.draining else []
    if not await _bus_answers(edge):
        missing.append("the bus does not answer")
    missing += edge.replicas.missing()
    status = {"status": "not ready" if missing else "ready", "missing": missing}
    return json_response(status, 503 if missing else 200)


async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    edge: Edge = request.app.state.edge
    return Response(edge.metrics.render(), media_type=CONTENT_TYPE_LATEST)


async def _bus_answers(edge: Edge) -> bool:
    with anyio.move_on_after(_BUS_S):
        try:
            await edge.bus.record(0, "readiness", "placement")
        except HeadraceError:
            return False
        return True
    return False
