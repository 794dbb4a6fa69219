"""POST /v1/moderations: what the safety rules of this server make of texts; nothing is generated or kept."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.edge import Edge
from gateway.edge.jsontext import json_response
from gateway.edge.safety.safety import Safety
from gateway.edge.schema.body import read_as
from gateway.edge.schema.moderations import Finding, ModerationRequest, moderation, texts_of
from gateway.postprocess.safety.filter import check
from gateway.postprocess.safety.policy import Direction, SafetyPolicy
from wire.errors import NotFoundError
from wire.messages import Request as WireRequest
from wire.threads import in_thread


async def create_moderation(request: Request) -> Response:
    """Apply the rules to texts."""
    edge: Edge = request.app.state.edge
    body = await read_as(request, ModerationRequest, edge.settings.max_body_bytes)
    texts = texts_of(body)
    safety = edge.safety
    policy = safety.for_request(WireRequest(model="")) if safety is not None else None
    if safety is None or policy is None:
        raise NotFoundError("This server has no safety policy: set HEADRACE_SAFETY_POLICY to a policy file.")
    with edge.admission.slot():
        findings = [await _find(safety, policy.for_reply(), text, body.direction) for text in texts]
    return json_response(moderation(body, policy, findings))


async def _find(safety: Safety, policy: SafetyPolicy, text: str, direction: Direction) -> Finding:
    shown, hits, blocked_by = await in_thread(check, policy, text, direction)
    if blocked_by is None:
        shown, judged = await safety.judge_whole(policy, direction, shown)
        hits = hits + judged
    return Finding(shown, hits)
