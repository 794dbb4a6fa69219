"""The job of a request on the ring: its envelope, its way in, and how it is cancelled."""

from __future__ import annotations

import time

from gateway.edge.identity import affinity_of, new_request_id, new_root, partition_of, root_of
from gateway.edge.settings import EdgeSettings
from wire import telemetry, topics
from wire.bus import Bus
from wire.messages import Cancel, Holder, Images, Job, Request
from wire.step import Step, go_ahead

CONTROL_MAXLEN = 10_000  # when a replica does not read its control stream, cancels are of no use to it either
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
        model=request.base,
        edge=inbox,
        deadline=time.time() + (settings.background_timeout_s if in_background else settings.request_timeout_s),
        traceparent=traceparent,
        tracestate=tracestate,
        affinity=affinity_of(request),
    )


async def admit(bus: Bus, job: Job, request: Request, images: Images | None = None) -> None:
    """Put a job on the ring; desks of this process do their part before. Raises the HeadraceError that keeps it out."""
    # Without a conversation there is nothing to recall: the first to see it is the tokenizer.
    recalls = request.conversation is not None
    first = topics.history(job.partition) if recalls else topics.tokenizer(job.partition, job.model)
    pictures = {"images": images} if images is not None else {}
    step = Step(to=first, fields={"request": request, "holder": holder_of(job), **pictures})
    job, step = await go_ahead(bus.neighbours, job, step)
    await bus.admit(job, step.fields, to=step.to, ttl_s=job.deadline - time.time() + _RECORD_SLACK_S)


def holder_of(job: Job) -> Holder:
    """Return what the record says of a job's edge."""
    return Holder(edge=job.edge, deadline=job.deadline, traceparent=job.traceparent, tracestate=job.tracestate)


async def cancel(
    bus: Bus,
    partition: int,
    request_id: str,
    *,
    attempt: int | None = None,
    replica_id: str | None = None,
    choice: int | None = None,
    reason: str = "client_gone",
    turn_follows: bool = False,
) -> None:
    """Stop a choice, or everything: the replica is told, and the record marked for the desks before it.

    `replica_id` is the replica that is known to work on it, `attempt` the newest that was heard of (else the record's).
    `turn_follows`: what there is of the answer will be stored.
    """
    if replica_id is not None:
        await _tell(bus, replica_id, Cancel(request_id=request_id, attempt=attempt or 0, choice=choice, reason=reason))
    if choice is None:
        placement = await bus.cancel(partition, request_id, turn_follows=turn_follows)
        if placement is not None and placement.replica_id != replica_id:
            newest = placement.attempt if attempt is None else attempt
            await _tell(bus, placement.replica_id, Cancel(request_id=request_id, attempt=newest, reason=reason))


async def _tell(bus: Bus, replica_id: str, message: Cancel) -> None:
    await bus.send(topics.control(replica_id), message, maxlen=CONTROL_MAXLEN)
