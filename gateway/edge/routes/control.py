"""POST /v1/requests/{id}/control: our own route, for a client that wants to steer a running request."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.edge import Edge
from gateway.edge.jsontext import json_response
from gateway.edge.schema.body import decode_body, read_body
from gateway.edge.schema.control import ControlRequest
from gateway.edge.tenancy.caller import current

_MAX_BYTES = 4096


async def control_request(request: Request) -> Response:
    """Pass the wish on; it is done at the request's next step, and without effect when no think block is open."""
    edge: Edge = request.app.state.edge
    body = await decode_body(await read_body(request, _MAX_BYTES), ControlRequest)
    name = request.path_params["id"]
    caller = current.get()
    await edge.controls.end_reasoning(name, caller.key.tenant if caller is not None else "")
    return json_response({"id": name, "object": "request.control", "action": body.action}, 202)
