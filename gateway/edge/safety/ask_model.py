"""Asks a served chat model a question alongside the requests of clients: one short answer, as text.

The question takes the same way over the ring as any request; it is not screened, not stored and not billed, and needs
no slot of the admission (a judge that waits behind the answers it must judge would never speak).
"""

from __future__ import annotations

import time

from anyio.abc import TaskGroup

from gateway.edge import jobs
from gateway.edge.flight import Flight
from gateway.edge.identity import new_request_id, new_root, partition_of
from gateway.edge.inflight import InFlight
from gateway.edge.served import Served
from gateway.postprocess.pipeline import Pipeline
from wire.bus import Bus
from wire.errors import HeadraceError, InternalError
from wire.messages import ChatMessage, Job, Request, SamplingParams

_MAX_TOKENS = 8


class AskModel:
    """Questions to the models that an edge serves; answers come through its `inbox` to `inflight`."""

    def __init__(
        self, bus: Bus, served: Served, inflight: InFlight, inbox: str, tasks: TaskGroup, *, partitions: int
    ) -> None:
        self._bus = bus
        self._served = served
        self._inflight = inflight
        self._inbox = inbox
        self._tasks = tasks
        self._partitions = partitions

    async def __call__(self, model: str, system: str, text: str, *, timeout_s: float) -> str:
        """Return the model's answer. Raises HeadraceError."""
        vocabulary = self._served.model(model).vocabulary
        messages = (ChatMessage(role="system", content=system), ChatMessage(role="user", content=text))
        sampling = SamplingParams(temperature=0.0, max_tokens=_MAX_TOKENS)
        request = self._served.routed(
            Request(model=model, messages=messages, sampling=sampling, effort="none", created_at=time.time())
        )
        job = Job(
            request_id=new_request_id(),
            partition=partition_of(new_root(), self._partitions),
            model=request.base,
            edge=self._inbox,
            deadline=time.time() + timeout_s,
        )
        with self._inflight.open(job.request_id, deadline=job.deadline) as flight:
            await jobs.admit(self._bus, job, request)
            try:
                return await _answer(flight, Pipeline(vocabulary))
            except BaseException:
                self._tasks.start_soon(self._cancel, job, flight.replica_id)
                raise

    async def _cancel(self, job: Job, replica_id: str | None) -> None:
        try:
            await jobs.cancel(self._bus, job.partition, job.request_id, replica_id=replica_id)
        except HeadraceError:
            return  # it ends by itself after a few tokens


async def _answer(flight: Flight, pipeline: Pipeline) -> str:
    """Return the whole text of an answer. Raises the error that it ends with."""
    shown: list[str] = []
    while pipeline.finish_reason is None:
        for chunk in await flight.take():
            deltas = pipeline.feed(chunk)
            if chunk.finish_reason in ("error", "cancelled"):
                raise InternalError(f"The replica reports: {chunk.finish_reason}.")
            if chunk.finish_reason is not None:
                deltas += pipeline.close(chunk.finish_reason)
            shown += [delta.text for delta in deltas if delta.kind == "answer"]
    return "".join(shown).strip()
