"""A replica that embeds or scores: takes the jobs placed on it, and sends the vectors to the edge that asked."""

from __future__ import annotations

import logging
import time

import anyio
from anyio.abc import TaskGroup

from model_svc.embedding.batcher import Batcher, Embeds
from model_svc.embedding.inputs import inputs_of
from model_svc.engine.load import EngineLoad
from model_svc.heartbeat import Heartbeat
from model_svc.lifecycle import take_jobs
from model_svc.outbox import EDGE_MAXLEN
from model_svc.persist import until_done
from model_svc.quarantine import Quarantine
from wire import metrics, telemetry, topics
from wire.bus import Bus, Delivery
from wire.errors import DeadlineExceededError, HeadraceError, InternalError, OverloadedError, RequestCancelledError
from wire.messages import Cancel, Embeddings, Job, Prompt, Request

log = logging.getLogger(__name__)

_MESSAGE_BYTES = 1 << 20  # vectors in one message
_PAUSE_S = 0.1


class EmbeddingReplica:
    """The shell around an embedder. Its methods run in the service's event loop."""

    def __init__(
        self, bus: Bus, embedder: Embeds, heartbeat: Heartbeat, *, replica_id: str, max_tokens: int, num_blocks: int
    ) -> None:
        self.batcher = Batcher(embedder, max_tokens=max_tokens, on_step=self._note_load)
        self.idle = anyio.Event()
        self.idle.set()
        self._bus = bus
        self._heartbeat = heartbeat
        self._replica_id = replica_id
        self._num_blocks = num_blocks
        self._quarantine = Quarantine(bus)
        self._open: dict[str, tuple[int, anyio.CancelScope]] = {}

    @property
    def num_open(self) -> int:
        """Requests that are not answered yet."""
        return len(self._open)

    async def take_jobs(self, partition: int, tasks: TaskGroup) -> None:
        """Read the jobs placed here in one partition; each is served by a task of its own."""
        await take_jobs(self._bus, self._replica_id, partition, self._serve, tasks)

    async def obey(self) -> None:
        """Follow the control stream until cancelled: cancels are all that means something here."""
        async for message in self._bus.inbox(topics.control(self._replica_id)):
            if isinstance(message, Cancel) and message.request_id in self._open:
                self._open[message.request_id][1].cancel()

    async def _serve(self, delivery: Delivery) -> None:
        job = delivery.message
        if not isinstance(job, Job):
            await until_done(lambda: self._bus.dead_letter(delivery, reason="not a job"))
            return
        if self._open.get(job.request_id, (-1, None))[0] >= job.attempt:
            return  # delivered again after a lost reply: a task of ours is on it
        self._enter(job)
        began, waited_s = anyio.current_time(), max(0.0, time.time() - delivery.published_at)
        try:
            error = await self._answer(job)
            if error is None:
                await until_done(lambda: self._bus.finish(delivery))
            else:
                failure = error
                await until_done(lambda: self._bus.fail(delivery, failure, desk="model"))
            outcome = error.code if error is not None else metrics.FINISHED
            work_s = anyio.current_time() - began
            metrics.note_left("model", job.model, outcome, wait_s=waited_s, work_s=work_s)
        finally:
            self._leave(job)

    async def _answer(self, job: Job) -> HeadraceError | None:
        """Embed and send; returns what went wrong."""
        attributes: dict[str, telemetry.AttributeValue] = {
            telemetry.OPERATION_NAME: "embeddings",
            telemetry.REQUEST_MODEL: job.model,
            telemetry.REQUEST_ID: job.request_id,
            telemetry.ATTEMPT: job.attempt,
        }
        scope = self._open[job.request_id][1]
        with telemetry.span(f"model {job.model}", job=job, attributes=attributes) as span:
            error: HeadraceError | None = RequestCancelledError("the client cancelled the request")
            with scope:
                try:
                    await self._embed(job)
                    error = None
                except HeadraceError as fault:
                    error = fault
                except Exception:
                    log.exception("request %s could not be embedded", job.request_id)
                    error = InternalError("the replica failed on this request; its log says why")
            if scope.cancelled_caught and anyio.current_time() >= scope.deadline:
                error = DeadlineExceededError("the deadline passed while the inputs were read")
            if error is not None:
                telemetry.mark_error(span, error)
        return error

    async def _embed(self, job: Job) -> None:
        record = await self._bus.open_record(job, "request", "prompt", "placement")
        if record is None:
            raise RequestCancelledError("the request was cancelled, or its record expired")
        request: Request | None = record.get("request")
        prompt: Prompt | None = record.get("prompt")
        if request is None or prompt is None or not request.is_encoded:
            raise InternalError("the job came without inputs to embed")
        me = (job.request_id, job.attempt)
        try:
            await self._quarantine.admit(me, job, record.get("placement"))
            vectors = await self.batcher.embed(inputs_of(request, prompt))
        finally:
            self._quarantine.prove(me)
        await self._send(job, prompt, vectors)

    async def _send(self, job: Job, prompt: Prompt, vectors: list[bytes]) -> None:
        """Send the vectors in messages of bounded size; an edge that reads slowly is waited for."""
        share = max(1, _MESSAGE_BYTES // len(vectors[0]))
        for index in range(0, len(vectors), share):
            message = Embeddings(
                request_id=job.request_id,
                attempt=job.attempt,
                index=index,
                dimensions=len(vectors[0]) // 4,
                vectors=b"".join(vectors[index : index + share]),
                num_tokens=prompt.num_tokens,
            )
            while True:
                try:
                    await self._bus.send(job.edge, message, maxlen=EDGE_MAXLEN)
                    break
                except OverloadedError:
                    await anyio.sleep(_PAUSE_S)

    def _enter(self, job: Job) -> None:
        if not self._open:
            self.idle = anyio.Event()
        left_s = job.deadline - time.time()
        if job.request_id in self._open:  # an earlier attempt
            self._open[job.request_id][1].cancel()
        self._open[job.request_id] = job.attempt, anyio.CancelScope(deadline=anyio.current_time() + left_s)

    def _leave(self, job: Job) -> None:
        if self._open.get(job.request_id, (-1, None))[0] == job.attempt:
            del self._open[job.request_id]
        if not self._open:
            self.idle.set()

    def _note_load(self) -> None:
        self._heartbeat.load = EngineLoad(
            num_free_blocks=self._num_blocks,
            num_running=self.batcher.num_running,
            num_waiting=self.batcher.num_waiting,
            num_waiting_tokens=self.batcher.num_waiting_tokens,
        )
