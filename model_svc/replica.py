"""One replica: takes the jobs placed on it to the engine, what the engine says to the edges, and commands to both."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from model_svc.adapter_keeper import AdapterKeeper
from model_svc.checkpoints import keep_checkpoints
from model_svc.commands import Commands
from model_svc.disagg.orders import BlocksDone
from model_svc.disagg.prefill import next_fields, next_job, note_prefilled, prefill_of
from model_svc.disagg.sharing import BlockSharing
from model_svc.engine.plan import Picture
from model_svc.engine.request import EngineRequest
from model_svc.engine_link import EngineLink
from model_svc.engine_messages import AdapterDone, CancelSequences, CloseThinking, Progress, Ready, Refused
from model_svc.heartbeat import Heartbeat
from model_svc.lifecycle import take_jobs
from model_svc.open_requests import OpenRequest, OpenRequests
from model_svc.outbox import Outbox
from model_svc.persist import until_done
from model_svc.quarantine import Quarantine
from model_svc.request_span import span_of
from model_svc.usage import note_usage
from wire import errors, metrics, topics
from wire.awake import Awake
from wire.bus import Bus, Delivery
from wire.errors import (
    DeadlineExceededError,
    HeadraceError,
    InternalError,
    InvalidRequestError,
    RequestCancelledError,
)
from wire.messages import Job, Placement, Prompt

if TYPE_CHECKING:  # only a replica whose model sees needs it
    from model_svc.pictures.reader import PictureReader

log = logging.getLogger(__name__)

_FIELDS = ("request", "prompt", "checkpoint", "closed", "holder", "placement", "prefilled")


class Replica:
    """The shell around the engine. All its methods run in the service's event loop."""

    def __init__(
        self, bus: Bus, link: EngineLink, heartbeat: Heartbeat, *, replica_id: str, model: str, awake_s: float = 0.0
    ) -> None:
        self.requests = OpenRequests()
        self.ready = anyio.Event()
        self.heard_at = time.monotonic()  # of the engine, last
        self.sharing: BlockSharing | None = None  # where blocks can be exchanged with other replicas
        self.adapters: AdapterKeeper | None = None  # where some may come at run time
        self.reader: PictureReader | None = None  # where the model sees pictures
        self._bus = bus
        self._link = link
        self._heartbeat = heartbeat
        self._awake = Awake(awake_s)
        self._quarantine = Quarantine(bus)
        metrics.show_trials(model)
        self._outbox = Outbox(bus, self.requests, replica_id=replica_id, model=model)
        self._commands = Commands(bus, link, self.requests, self._outbox, replica_id)
        self._replica_id = replica_id
        self._model = model

    async def follow_engine(self) -> None:
        """Take what the engine says until it dies. Raises EngineDiedError."""
        while True:
            messages = await self._link.receive()
            self.heard_at = time.monotonic()
            for message in messages:
                match message:
                    case Progress():
                        self._progress(message)
                    case Refused():
                        self._refused(message)
                    case BlocksDone():
                        if self.sharing is not None:
                            self.sharing.link.answered(message)
                    case AdapterDone():
                        if self.adapters is not None:
                            self.adapters.answered(message)
                    case Ready():
                        self._heartbeat.info = message.info
                        self.ready.set()
            self._outbox.flush()

    async def send_tokens(self) -> None:
        """Send tokens and KV events to where they belong, until cancelled."""
        await self._outbox.run()

    async def keep_checkpoints(self) -> None:
        """Write down now and then what requests have generated, until cancelled."""
        await keep_checkpoints(self._bus, self.requests)

    async def take_jobs(self, partition: int, tasks: TaskGroup) -> None:
        """Read the jobs placed on this replica in one partition; each is served by a task of its own."""
        await take_jobs(self._bus, self._replica_id, partition, self._serve, tasks)

    async def obey(self) -> None:
        """Follow the control stream until cancelled."""
        await self._commands.follow()

    def _progress(self, progress: Progress) -> None:
        for chunk in progress.chunks:
            request = self.requests.get(chunk.request_id)
            if request is None or request.job.attempt != chunk.attempt or request.error is not None:
                continue
            if request.is_prefill:
                note_prefilled(request, chunk)
                continue
            self._heartbeat.num_generated_tokens += len(chunk.token_ids)
            request.add(chunk)
            self._outbox.put(progress.step, request)
            if request.owes_proof > 0:
                request.owes_proof -= len(chunk.token_ids)
                if request.owes_proof <= 0 or request.ended.is_set():
                    self._quarantine.prove(request)
        if progress.events:
            self._outbox.put_events(progress.events)
        if progress.load is not None:
            self._heartbeat.load = progress.load

    def _refused(self, refused: Refused) -> None:
        request = self.requests.get(refused.request_id)
        if request is not None and request.job.attempt == refused.attempt:
            request.fail(errors.by_code(refused.code)(refused.message, param=refused.param))

    async def _serve(self, delivery: Delivery) -> None:
        """See one job through: to the engine, and at its end off the stream."""
        job = delivery.message
        if not isinstance(job, Job):
            await until_done(lambda: self._bus.dead_letter(delivery, reason="not a job"))
            return
        self._awake.stay()
        request = OpenRequest(job, wait_ms=max(0.0, (time.time() - delivery.published_at) * 1e3))
        if not self.requests.open(request):
            return  # delivered again after a lost reply: a task of ours is on it
        began = anyio.current_time()
        try:
            with span_of(request, self._replica_id):
                await self._run(request)
            is_handed_on = request.is_prefill and request.error is None
            outcome = await (self._hand_on(delivery, request) if is_handed_on else self._end(delivery, request))
            work_s = anyio.current_time() - began
            metrics.note_left("model", job.model, outcome, wait_s=request.wait_ms / 1e3, work_s=work_s)
        finally:
            if self.reader is not None:
                self.reader.room.let_go(request.num_pictures)
            self.requests.close(request, anyio.current_time())

    async def _end(self, delivery: Delivery, request: OpenRequest) -> str:
        """Take a request that has ended off the stream; returns its outcome."""
        await note_usage(self._bus, request)
        error = request.error
        if error is None:
            await until_done(lambda: self._bus.finish(delivery))
            return metrics.FINISHED
        await until_done(lambda: self._bus.fail(delivery, error, desk="model"))
        return error.code

    async def _hand_on(self, delivery: Delivery, request: OpenRequest) -> str:
        """Give a job whose prompt is computed back to the balancer, which knows best who goes on with it now."""
        self.requests.forget(request)  # it may come back before the next line has ended
        job = next_job(request)
        to, fields = topics.balancer(job.partition, job.model), next_fields(request, self._replica_id)
        try:
            await until_done(lambda: self._bus.hand_off(delivery, job, to=to, fields=fields))
        except HeadraceError as error:
            full = error
            await until_done(lambda: self._bus.fail(delivery, full, desk="model"))
            return error.code
        return metrics.HANDED_ON

    async def _run(self, request: OpenRequest) -> None:
        """Generate until the request ended; its error, if any, is left in it."""
        job = request.job
        with anyio.move_on_after(job.deadline - time.time()):
            try:
                await self._submit(request)
            except HeadraceError as error:
                request.fail(error)
            except Exception:
                log.exception("request %s could not be taken", job.request_id)
                request.fail(InternalError("the replica could not take the request"))
            await request.ended.wait()
            if request.error is None:
                await request.settled.wait()
        self._quarantine.prove(request)
        if not request.settled.is_set() and request.error is None:
            request.error = DeadlineExceededError("the deadline passed while the answer was generated")
            request.ended.set()
            await self._link.send(CancelSequences(request_id=job.request_id))

    async def _submit(self, request: OpenRequest) -> None:
        job = request.job
        record = await self._bus.open_record(job, *_FIELDS)
        if record is None or request.cancelled:
            raise RequestCancelledError("the request was cancelled, or its record expired")
        wanted, prompt, checkpoint, closed, holder, placement, prefilled = (record.get(name) for name in _FIELDS)
        if wanted is None or prompt is None:
            raise InternalError("the job came without a request or a prompt")
        request.num_choices, request.prompt_note = wanted.sampling.n, prompt.note
        if holder is not None and request.edge == job.edge:  # else it was taken over while the record was on its way
            request.edge = holder.edge
        request.tenant, request.key_id, request.model = wanted.tenant, wanted.key_id, wanted.model
        request.prefill_j = prefilled.energy_j if prefilled is not None else None
        request.keeps_checkpoints = wanted.sampling.logprobs is None  # they would be lost with another edge
        if checkpoint is not None:
            request.begin_with(checkpoint)
        pictures = await self._pictures(request, prompt)
        if placement is not None and wanted.sampling.prompt_logprobs is None:  # else all of it is computed anyway
            await self._fetch(request, prompt, placement)
        await self._quarantine.admit(request, job, placement)
        if request.cancelled:
            raise RequestCancelledError("the request was cancelled before it began")
        request.submitted = True
        request.closed_at = dict(closed.at) if closed is not None else {}
        engine_request = EngineRequest(
            request_id=job.request_id,
            prompt=prompt,
            sampling=wanted.sampling,
            attempt=job.attempt,
            checkpoint=checkpoint.token_ids if checkpoint is not None else {},
            priority=wanted.priority,
            tenant=wanted.tenant,
            closed_at=request.closed_at,
            adapter=wanted.adapter,
            pictures=pictures,
        )
        if placement is not None and placement.prefill and placement.attempt == job.attempt:
            await self._prefill(request, engine_request)
            return
        await self._link.send(engine_request)
        if request.ends_thinking:
            await self._link.send(CloseThinking(request_id=job.request_id))
        for choice in checkpoint.ended if checkpoint is not None else ():
            await self._link.send(CancelSequences(request_id=job.request_id, choice=choice))

    async def _prefill(self, request: OpenRequest, engine_request: EngineRequest) -> None:
        """Have the prompt computed and no more."""
        request.is_prefill = True
        request.keeps_checkpoints = False
        whole = prefill_of(engine_request)
        if whole is not None:
            await self._link.send(whole)
        else:
            request.pass_on()

    async def _pictures(self, request: OpenRequest, prompt: Prompt) -> tuple[Picture, ...]:
        """Read a prompt's pictures, when there is room for them."""
        if not prompt.images:
            return ()
        if self.reader is None:
            raise InvalidRequestError("this replica's model sees no pictures", param="messages")
        request.num_pictures = await self.reader.room.take(len({span.digest for span in prompt.images}))
        return await self.reader.pictures_of(request.job, prompt)

    async def _fetch(self, request: OpenRequest, prompt: Prompt, placement: Placement) -> None:
        """Get what another replica has computed of the prompt. Raises RequestCancelledError."""
        if self.sharing is None or placement.source is None or placement.attempt != request.job.attempt:
            return
        load = self._heartbeat.load
        fetched = await self.sharing.fetch(prompt, placement, load.prefill_token_ms if load is not None else 0.0)
        request.fetch_ms = round(fetched.seconds * 1e3, 3)
        begin = placement.cached_tokens
        request.fetched = (begin, begin + fetched.num_blocks * prompt.block_size)
        if request.cancelled:
            raise RequestCancelledError("the request was cancelled while its blocks were fetched")
