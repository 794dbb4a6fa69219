"""What the history desk keeps of an answer."""

from __future__ import annotations

from typing import Any

from gateway.edge.reply import Reply
from wire.messages import Job, Request, Turn


def turn_of(
    job: Job, request: Request, reply: Reply, response: dict[str, Any], *, attempt: int, prompt_ids: bytes
) -> Turn:
    """Return the turn of a request with a conversation; `response` is what a later GET of the answer shows."""
    conversation = request.conversation
    assert conversation is not None
    return Turn(
        request_id=job.request_id,
        attempt=attempt,
        partition=job.partition,
        model=request.model,
        tenant=request.tenant,
        response_id=conversation.response_id,
        conversation=conversation,
        input=request.messages,
        output=reply.messages(),
        prompt_ids=prompt_ids,
        status=response["status"],
        usage=response["usage"] or {},
        created_at=request.created_at,
        response=response,
    )
