"""The tokenizer desk: gives each job its prompt in token ids, and the names of the prompt's KV blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import anyio
from anyio.abc import TaskStatus

from tokenizer_svc.calls import TokenizeDesk
from tokenizer_svc.effort import EffortTable
from tokenizer_svc.embedding import EmbeddingPrompts
from tokenizer_svc.prompt import PromptBuilder
from tokenizer_svc.rooms import Rooms
from tokenizer_svc.settings import TokenizerSettings
from wire import topics
from wire.bus import Bus
from wire.desk import serve_desk
from wire.errors import InternalError, ModelNotFoundError
from wire.messages import Job, Prompt, Recalled, Request, TokenizeCall
from wire.model_card import ModelCard
from wire.step import Step
from wire.threads import in_thread

_FEW_IDS_BYTES = 4 * 2_048  # checking and naming them takes less than waking a thread: there is nothing to encode


class Builder(Protocol):
    """Makes the prompts of one model."""

    def build(self, request: Request, recalled: Recalled | None = None, room: int | None = None) -> Prompt:
        """Return the prompt of a request."""
        ...

    def tokenize(self, call: TokenizeCall) -> list[int]:
        """Return the ids that a call asks for."""
        ...


class TokenizerDesk:
    """Builds prompts in worker threads of its own, so that a long text or a slow template delays nobody else."""

    def __init__(self, builders: Mapping[str, Builder], rooms: Rooms, *, threads: int) -> None:
        self._builders = builders
        self._rooms = rooms
        self.limiter = anyio.CapacityLimiter(threads)

    async def handle(self, job: Job, record: dict[str, Any]) -> Step:
        """Take a job's request and what the history desk recalled; hand on its prompt."""
        builder = self._builders.get(job.model)
        if builder is None:
            raise ModelNotFoundError(f"no model {job.model!r} is served here", param="model")
        request: Request | None = record.get("request")
        if request is None:
            raise InternalError("The job came to the tokenizer desk without a request.")
        recalled: Recalled | None = record.get("recalled")
        room = self._rooms.most(job.model)
        if request.kind == "ids" and len(request.prompt_ids) <= _FEW_IDS_BYTES:
            prompt = builder.build(request, recalled, room)
        else:
            prompt = await in_thread(builder.build, request, recalled, room, limiter=self.limiter)
        # Nothing of what is only read is cached by prefix: the next to see it is the balancer.
        next_desk = topics.balancer if request.is_encoded else topics.prefix
        return Step(to=next_desk(job.partition, job.model), fields={"prompt": prompt})


async def serve(settings: TokenizerSettings, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Serve the tokenizer desk of all models until cancelled."""
    async with Bus.open(settings.redis_url) as bus:
        secret = await bus.secret("block-hash")
        builders = {model: await in_thread(_builder, settings, model, secret) for model in settings.models}
        rooms = Rooms()
        desk = TokenizerDesk(builders, rooms, threads=settings.tokenizer_threads)
        async with anyio.create_task_group() as tasks:
            for model in settings.models:
                tasks.start_soon(rooms.follow, bus, model)
            await serve_desk(
                bus,
                name="tokenizer",
                streams=settings.streams(topics.tokenizer),
                handle=desk.handle,
                on_message=TokenizeDesk(bus, builders, desk.limiter).on_message,
                concurrency=4 * settings.tokenizer_threads,
                fields=("request", "recalled"),
                ahead=True,
                task_status=task_status,
            )


def _builder(settings: TokenizerSettings, model: str, secret: bytes) -> Builder:
    path = settings.model_path(model)
    card = ModelCard.load(path, model)
    if card.kind != "chat":
        return EmbeddingPrompts(card)
    return PromptBuilder(
        card,
        secret=secret,
        block_size=settings.block_size,
        render_timeout_s=settings.template_timeout_s,
        efforts=EffortTable.load(path, model, settings.reasoning_budgets, settings.reasoning_bridge),
    )
