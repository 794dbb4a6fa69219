"""Takes over a request that another edge was answering: its tokens are asked for again, and come here from now on.

The record says who holds a request (for replicas that get the job later), the replica is told besides. An edge that
takes over was not there when the job failed or moved, so it looks at the record until the first tokens come, and goes
on looking: another replica may have to be asked.
"""

from __future__ import annotations

import logging

import anyio

from gateway.edge.errors import from_failure
from gateway.edge.flight import Flight
from gateway.edge.inflight import InFlight
from gateway.edge.jobs import CONTROL_MAXLEN, holder_of
from wire import topics
from wire.bus import Bus
from wire.bus.records import Fate
from wire.errors import HeadraceError, NotFoundError, RequestCancelledError, UnavailableError
from wire.messages import Holder, Job, ReportTokens, Request, Resubscribe, TokenReport

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_PATIENCE = 8  # looks at a job that has ended and whose tokens do not come: its replica has forgotten them


async def find(bus: Bus, partition: int, request_id: str, *, tenant: str | None) -> tuple[Request, Holder]:
    """Return a request that was admitted before, and who holds it. Raises NotFoundError; `tenant` None: anybody's."""
    record = await bus.record(partition, request_id, "request", "holder")
    request: Request | None = record.get("request")
    holder: Holder | None = record.get("holder")
    if request is None or holder is None or tenant not in (None, request.tenant):
        raise NotFoundError("Nothing is known of this request any more.")
    return request, holder


def job_of(partition: int, request_id: str, model: str, holder: Holder, *, edge: str) -> Job:
    """Return the envelope of a job that another edge has admitted, with this edge's inbox."""
    return Job(
        request_id=request_id,
        partition=partition,
        model=model,
        edge=edge,
        deadline=holder.deadline,
        traceparent=holder.traceparent,
        tracestate=holder.tracestate,
    )


async def take_over(bus: Bus, job: Job) -> None:
    """Write into the record who holds the request now; not against the will of a record that is gone."""
    if not await bus.update_record(job.partition, job.request_id, {"holder": holder_of(job)}):
        raise UnavailableError("Nothing is known of this request any more.")


async def follow(bus: Bus, inflight: InFlight, flight: Flight, job: Job, num_choices: int) -> None:
    """Ask the replica for the tokens, again after each move of the job, as long as the flight is open."""
    asked = ""
    patience = _PATIENCE
    while inflight.holds(flight):
        try:
            fate = await bus.fate(job.partition, job.request_id)
            ending = _ending(fate)
            if ending is not None:
                flight.fail(ending)
                return
            at = fate.placement.replica_id if fate.placement is not None else ""
            if at and (at != asked or flight.replica_id is None):
                await _ask(bus, job, at, num_choices)
                asked = at
            if fate.over and flight.replica_id is None:
                patience -= 1
                if patience == 0:
                    flight.fail(UnavailableError("The tokens of this request are not kept any more."))
                    return
        except HeadraceError as error:
            logger.warning("request %s: could not be asked for again: %s", job.request_id, error.message)
        await anyio.sleep(_LOOK_S)


def _ending(fate: Fate) -> HeadraceError | None:
    if not fate.known:
        return UnavailableError("Nothing is known of this request any more.")
    if fate.failure is not None:
        return from_failure(fate.failure)
    if fate.cancelled and fate.placement is None:
        return RequestCancelledError("The request was cancelled.")
    return None


async def report(bus: Bus, inflight: InFlight, question: ReportTokens) -> None:
    """Tell a balancer which tokens of a request are here: the replica that gave them is lost, another goes on."""
    answer = TokenReport(request_id=question.request_id, checkpoint=inflight.checkpoint(question.request_id))
    try:
        await bus.send(question.reply_to, answer, maxlen=CONTROL_MAXLEN)
    except HeadraceError as error:
        logger.warning("request %s: its tokens were not reported: %s", question.request_id, error.message)


async def _ask(bus: Bus, job: Job, replica_id: str, num_choices: int) -> None:
    for choice in range(num_choices):
        message = Resubscribe(request_id=job.request_id, edge=job.edge, choice=choice)
        await bus.send(topics.control(replica_id), message, maxlen=CONTROL_MAXLEN)
