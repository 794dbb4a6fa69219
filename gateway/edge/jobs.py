"""From a request to its job on the ring: the envelope, and the record that holds what grows."""

from __future__ import annotations

import time

from gateway.edge.identity import affinity_of, new_request_id, new_root, partition_of, root_of
from gateway.edge.settings import EdgeSettings
from gateway.edge.takeover import holder_of
from wire import telemetry, topics
from wire.bus import Bus
from wire.messages import Job, Request

_RECORD_SLACK_S = 120.0  # a record outlives its deadline, so that the end of a request can still be accounted for


def new_job(request: Request, settings: EdgeSettings, inbox: str) -> Job:
    """Return a request's envelope; one that belongs to a conversation goes where that lives."""
    traceparent, tracestate = telemetry.inject()
    reference = request.conversation
    in_background = bool(request.reply.get("background"))
    root = root_of(reference.conversation_id or reference.response_id) if reference is not None else new_root()
    return Job(
        request_id=reference.response_id if reference is not None else new_request_id(),
        partition=partition_of(root, settings.partitions),
        model=request.model,
        edge=inbox,
        deadline=time.time() + (settings.background_timeout_s if in_background else settings.request_timeout_s),
        traceparent=traceparent,
        tracestate=tracestate,
        affinity=affinity_of(request),
    )


async def admit(bus: Bus, job: Job, request: Request) -> None:
    """Put a job on the ring. Raises OverloadedError or UnavailableError."""
    # Nothing is recalled for an embedding: the first to see it is the tokenizer.
    embeds = request.kind == "embedding"
    first = topics.tokenizer(job.partition, job.model) if embeds else topics.history(job.partition)
    ttl_s = job.deadline - time.time() + _RECORD_SLACK_S
    await bus.admit(job, {"request": request, "holder": holder_of(job)}, to=first, ttl_s=ttl_s)
