"""The edge desk: admits requests to the ring and hands what comes back to the answer that waits for it."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from anyio.abc import TaskGroup
from opentelemetry.trace import Span, SpanContext

from gateway.edge.adapters import RuntimeAdapters
from gateway.edge.admission import Admission
from gateway.edge.background import Background
from gateway.edge.batch import Batch, naming
from gateway.edge.bell import Bell
from gateway.edge.control import Controls
from gateway.edge.desks.embeddings import EmbeddingClient, Vectors
from gateway.edge.desks.history import HistoryClient
from gateway.edge.desks.tokenizer import TokenizerClient
from gateway.edge.endings import Endings
from gateway.edge.errors import from_failure
from gateway.edge.flight import Flight, Gap
from gateway.edge.generation import Generation
from gateway.edge.grammar_trial import GrammarTrials
from gateway.edge.inflight import InFlight
from gateway.edge.jobs import CONTROL_MAXLEN, admit, new_job
from gateway.edge.lingering import Lingering
from gateway.edge.metrics import Metrics
from gateway.edge.pipelines import new_pipeline
from gateway.edge.readiness import Replicas
from gateway.edge.reply import Reply
from gateway.edge.room import Room
from gateway.edge.safety.ask_model import AskModel
from gateway.edge.safety.safety import Safety
from gateway.edge.seeing import Seeing
from gateway.edge.served import Served
from gateway.edge.settings import EdgeSettings
from gateway.edge.takeover import find, follow, job_of, report, take_over
from gateway.edge.tenancy.accounts import Accounts
from gateway.edge.tracing import note_outcome, request_span
from gateway.postprocess.safety.store import Policies
from wire import telemetry, topics
from wire.awake import Awake
from wire.bus import Bus
from wire.errors import HeadraceError
from wire.messages import (
    Embeddings,
    Failure,
    HistoryReply,
    Holder,
    Images,
    Job,
    ReplicaStatus,
    ReportTokens,
    Request,
    TokenBatch,
    TokenizeReply,
)

logger = logging.getLogger(__name__)


class Edge:
    """Everything the routes need. `tasks` is the service's task group, for what outlives one HTTP answer."""

    def __init__(
        self,
        settings: EdgeSettings,
        bus: Bus,
        served: Served,
        tasks: TaskGroup,
        policies: Policies | None = None,
        accounts: Accounts | None = None,
    ) -> None:
        self.settings = settings
        self.accounts = accounts or Accounts(bus)
        self.bus = bus
        self.served = served
        self.inbox = topics.edge(f"edge-{secrets.token_hex(6)}")
        self.seeing = Seeing(settings, served)
        self.admission = Admission(settings.max_inflight)
        self.inflight = InFlight(settings.max_pending_tokens)
        self.awake = Awake(settings.awake_s)
        self.room = Room(settings.max_connections)
        self.history = HistoryClient(bus, self.inbox, settings.history_timeout_s)
        self.embeddings = EmbeddingClient(bus, lambda request: new_job(request, settings, self.inbox))
        self.tokenizer = TokenizerClient(bus, served, self.inbox, settings.tokenize_timeout_s, settings.partitions)
        self.replicas = Replicas(served.bases)
        self.adapters = RuntimeAdapters(bus, served, self.replicas)
        self.metrics = Metrics(served.names, self.admission, self.inflight, self.replicas, self.room)
        self.safety = self._apply(policies, tasks) if policies is not None else None
        self.endings = Endings(tasks, self.admission, self.accounts, self.metrics, self.safety)
        self.lingering = Lingering(bus, self.inbox, self.endings, tasks, wait_s=settings.resume_wait_s)
        self.background = Background(self, settings, bus, self.inbox, tasks)
        self.grammars = GrammarTrials(served)
        self.controls = Controls(bus, settings.partitions)
        self._tasks = tasks

    def _apply(self, policies: Policies, tasks: TaskGroup) -> Safety:
        bus, served, settings = self.bus, self.served, self.settings
        ask = AskModel(bus, served, self.inflight, self.inbox, tasks, partitions=settings.partitions)
        return Safety(
            policies, settings, bus, ask, served=served, accounts=self.accounts, metrics=self.metrics, tasks=tasks
        )

    @property
    def is_open(self) -> bool:
        """Tell whether one more request would be admitted."""
        return self.admission.is_open

    async def drain(self) -> None:
        """Refuse new requests, leave those of the background to others, wait until the last open one has ended."""
        self.admission.draining = True
        self.background.hand_over()
        await self.endings.until_none_open()

    def leave_questions(self) -> None:
        """Give up questions to other desks: whoever asked is about to lose the connection."""
        self.history.close()
        self.tokenizer.close()

    async def embed(self, request: Request, operation: str, *, parent: SpanContext | None) -> Vectors:
        """Admit a request for vectors or scores and return them. Raises the error it ended with."""
        request = self.accounts.own(request)
        with self._slot(), request_span(request, operation, stream=False, parent=parent) as span:
            with self.metrics.time_embeddings(request.model, operation) as note:
                async with self.accounts.spend(request, timeout_s=self.settings.request_timeout_s) as pay:
                    found = await self.embeddings.embed(request)
                    pay(found.num_tokens)
                note(found.num_tokens)
            span.set_attribute(telemetry.USAGE_INPUT_TOKENS, found.num_tokens)
            return found

    async def read_inbox(self) -> None:
        """Hand out tokens, failures and replies as they come; never waits for a client."""
        async for message in self.bus.inbox(self.inbox):
            match message:
                case TokenBatch():
                    for gap in self.inflight.deliver(message):
                        self._tasks.start_soon(self._ask_again, gap)
                case Failure():
                    error = from_failure(message)
                    self.inflight.fail(message, error)
                    self.embeddings.fail(message, error)
                case Embeddings():
                    self.embeddings.deliver(message)
                case HistoryReply():
                    self.history.deliver(message)
                case TokenizeReply():
                    self.tokenizer.deliver(message)
                case ReportTokens():
                    self._tasks.start_soon(report, self.bus, self.inflight, message)

    async def watch_replicas(self, model: str) -> None:
        """Follow the heartbeats of a model's replicas."""
        async for message in self.bus.watch(topics.status(model), start="$"):
            if isinstance(message, ReplicaStatus):
                self.replicas.note(message)

    @asynccontextmanager
    async def generate(
        self,
        request: Request,
        reply: Reply,
        *,
        operation: str,
        stream: bool,
        parent: SpanContext | None,
        images: Images | None = None,
    ) -> AsyncIterator[Generation]:
        """Admit a request and keep its entry while the block answers it; what is left undone is cancelled.

        Raises OverloadedError or UnavailableError when it is not admitted.
        """
        with self._slot():
            async with self._generate(
                request, reply, operation=operation, stream=stream, parent=parent, images=images
            ) as generation:
                yield generation

    @asynccontextmanager
    async def resume(
        self,
        partition: int,
        request_id: str,
        reply_of: Callable[[Request], Reply],
        *,
        operation: str,
        tenant: str | None = None,
    ) -> AsyncIterator[Generation]:
        """Go on with a request that was admitted before, here or at another edge: its tokens come again from the first.

        Raises NotFoundError when nothing is known of it (any more), or not to this tenant.
        """
        request, holder = await find(self.bus, partition, request_id, tenant=tenant)
        job = job_of(partition, request_id, request.base, holder, edge=self.inbox)
        reply = reply_of(request)
        with self._slot():
            self.lingering.come_back(request_id)  # not before: who is refused has not come back
            async with self._take_over(job, request, reply, holder, operation) as generation:
                yield generation

    @asynccontextmanager
    async def generate_all(
        self, requests: Sequence[Request], reply: Reply, *, operation: str, stream: bool, parent: SpanContext | None
    ) -> AsyncIterator[Batch]:
        """Admit requests that share one answer, all of them or none; all have the same number of choices."""
        bell = Bell()
        with self._slot(len(requests)):
            async with AsyncExitStack() as stack:
                generations = []
                for at, request in enumerate(requests):
                    one = self._generate(request, reply, operation=operation, stream=stream, parent=parent, bell=bell)
                    with naming(at, len(requests)):
                        generations.append(await stack.enter_async_context(one))
                yield Batch(generations, reply, bell)

    @contextmanager
    def _slot(self, count: int = 1) -> Iterator[None]:
        """Hold a slot, or several; a drain hears when the last one is given up, whatever came of its request."""
        try:
            with self.admission.slot(count):
                yield
        finally:
            self.endings.tell_if_none_open()

    @asynccontextmanager
    async def _generate(
        self,
        request: Request,
        reply: Reply,
        *,
        operation: str,
        stream: bool,
        parent: SpanContext | None,
        bell: Bell | None = None,
        images: Images | None = None,
    ) -> AsyncIterator[Generation]:
        """Admit a request whose slot is held, and keep its entry while the block answers it."""
        self.awake.stay()
        request = self.served.routed(self.accounts.own(request))
        with request_span(request, operation, stream=stream, parent=parent) as span:
            job = new_job(request, self.settings, self.inbox)
            limit_s = self.settings.max_wait_s or job.deadline - time.time()
            self.admission.check_wait(self.replicas.wait_s(request.base), limit_s)
            with self.inflight.open(job.request_id, deadline=job.deadline, bell=bell) as flight:
                generation = self._new_generation(job, request, flight, reply)
                await self.accounts.enter(job.request_id, request, deadline=job.deadline)
                with self._accounting(generation, span, operation):  # nothing stands between what is in and its end
                    await admit(self.bus, job, request, images)
                    yield generation

    @asynccontextmanager
    async def _take_over(
        self, job: Job, request: Request, reply: Reply, holder: Holder, operation: str
    ) -> AsyncIterator[Generation]:
        """Keep an entry for a request that is on the ring already, and have its tokens come here."""
        self.awake.stay()
        parent = telemetry.extract(holder.traceparent, holder.tracestate)
        with (
            request_span(request, operation, stream=True, parent=parent) as span,
            self.inflight.open(job.request_id, deadline=job.deadline) as flight,
        ):
            generation = self._new_generation(job, request, flight, reply)
            with self._accounting(generation, span, operation):
                await take_over(self.bus, job)
                self._tasks.start_soon(follow, self.bus, self.inflight, flight, job, request.sampling.n)
                yield generation

    def _new_generation(self, job: Job, request: Request, flight: Flight, reply: Reply) -> Generation:
        pipelines = [
            new_pipeline(request, self.served.model(request.model), self.safety, flight, choice)
            for choice in range(request.sampling.n)
        ]
        return Generation(job, request, flight, reply, pipelines, bus=self.bus, stop_choice=self.endings.stop_choice)

    @contextmanager
    def _accounting(self, generation: Generation, span: Span, operation: str) -> Iterator[None]:
        """Note how the block ends a request, and begin its ending, however that is."""
        try:
            yield
        except HeadraceError as error:
            generation.error = generation.error or error
            raise
        finally:
            generation.handed_over = generation.handed_over or generation.flight.taken_over
            note_outcome(span, generation)
            self.endings.begin(generation, operation)

    async def _ask_again(self, gap: Gap) -> None:
        self.metrics.note_resubscribe()
        try:
            await self.bus.send(topics.control(gap.replica_id), gap.question(self.inbox), maxlen=CONTROL_MAXLEN)
        except HeadraceError as error:
            logger.warning("request %s: gap not asked for: %s", gap.request_id, error.message)
