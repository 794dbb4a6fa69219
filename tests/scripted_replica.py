"""A replica that says what a script tells it: the whole ring but the model is real.

It speaks the bus as a model service does (heartbeats, its streams, TokenBatch, Cancel, Resubscribe) and keeps what it
heard, so that tests can look.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from tests.consume import consume
from tests.script import Piece, Script, say
from tests.scripted_request import Running
from wire import topics
from wire.bus import Bus, Delivery
from wire.messages import (
    AnyMessage,
    Cancel,
    Job,
    PhaseMark,
    ReplicaStatus,
    Request,
    Resubscribe,
    TokenBatch,
    TokenChunk,
)
from wire.model_card import ModelCard
from wire.vocabulary import Vocabulary

_MAXLEN = 100_000
_BEAT_S = 0.1
_SAID_INTERVAL_S = 20.0  # a busy machine that is late with a beat does not make the replica look dead

_PICTURES = ("images", "recalled_images")


class ScriptedReplica:
    """Plays a replica of one model on a bus."""

    def __init__(self, bus: Bus, model: str, model_path: Path, *, partitions: int = 1) -> None:
        self.bus = bus
        self.model = model
        self.replica_id = f"{model}-scripted-{secrets.token_hex(4)}"
        self.vocabulary = Vocabulary.load(model_path)
        self.state = "ready"
        self.num_waiting_tokens = 0
        self.told: dict[str, Any] = {}  # what its heartbeats say besides
        card = ModelCard.load(model_path)
        self.max_model_len = card.max_model_len
        self.script: Script | Callable[[Request], Script] = Script(say("hello"))
        self.requests: list[Running] = []
        self.control: list[AnyMessage] = []
        self.drop: Callable[[TokenChunk], bool] = lambda _: False
        self.transform: Callable[[TokenChunk], list[TokenChunk]] = lambda chunk: [chunk]
        self._partitions = partitions
        self._ids = {self.vocabulary.token_bytes(token_id): token_id for token_id in range(self.vocabulary.size)}
        self._ids |= {text.encode(): token_id for text, token_id in self.vocabulary.special.items()}
        (self.end_token,) = card.eos_token_ids
        self._cached: set[bytes] = set()
        self._changed = anyio.Event()
        self._step = 0

    @property
    def running(self) -> list[Running]:
        """Return the requests that have not ended."""
        return [running for running in self.requests if not running.ended.is_set()]

    @property
    def cancels(self) -> list[Cancel]:
        """Return the Cancels so far."""
        return [message for message in self.control if isinstance(message, Cancel)]

    def play(self, *pieces: Piece, **options: object) -> None:
        """Say these pieces to every request from now on."""
        self.script = Script(pieces, **options)  # type: ignore[arg-type]

    async def until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait until something the replica saw makes a condition true."""
        with anyio.fail_after(timeout_s):
            while not condition():
                await self._changed.wait()

    async def cancelled(self, count: int = 1) -> list[Cancel]:
        """Wait for so many Cancels and return them."""
        await self.until(lambda: len(self.cancels) >= count)
        return self.cancels

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Beat, read jobs and obey until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._beat)
            tasks.start_soon(self._obey)
            for partition in range(self._partitions):
                tasks.start_soon(self._read, partition, tasks)
            task_status.started()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def beat_once(self) -> None:
        """Send one heartbeat."""
        status = ReplicaStatus(
            replica_id=self.replica_id,
            model=self.model,
            state=self.state,
            sent_at=time.time(),
            num_blocks=10_000,
            num_free_blocks=10_000,
            num_running=len(self.running),
            num_waiting_tokens=self.num_waiting_tokens,
            max_model_len=self.max_model_len,
            max_num_seqs=1024,
            interval_s=_SAID_INTERVAL_S,
            **self.told,
        )
        await self.bus.publish(topics.status(self.model), status, maxlen=1000)

    async def _beat(self) -> None:
        while True:
            await self.beat_once()
            await anyio.sleep(_BEAT_S)

    async def _obey(self) -> None:
        async for message in self.bus.inbox(topics.control(self.replica_id)):
            self.control.append(message)
            for running in self.requests:
                if getattr(message, "request_id", "") != running.job.request_id:
                    continue
                if isinstance(message, Cancel) and not running.ended.is_set():
                    scope = running.scope if message.choice is None else running.choice_scopes[message.choice]
                    scope.cancel()
                elif isinstance(message, Resubscribe):
                    await self._resend(running, message)
            self._notify()

    async def _resend(self, running: Running, ask: Resubscribe) -> None:
        running.edge = ask.edge
        chunks = [chunk for chunk in running.sent[ask.choice] if chunk.index >= ask.from_index]
        await self.bus.send(ask.edge, self.batch(chunks), maxlen=_MAXLEN)

    async def _read(self, partition: int, tasks: TaskGroup) -> None:
        stream = topics.replica(partition, self.replica_id)
        async for delivery in consume(self.bus, stream, group="replica", consumer=self.replica_id):
            tasks.start_soon(self._run, delivery)

    async def _run(self, delivery: Delivery) -> None:
        job = delivery.message
        assert isinstance(job, Job)
        record = await self.bus.record(job.partition, job.request_id, "request", "prompt", *_PICTURES)
        request: Request = record["request"]
        script = self.script(request) if callable(self.script) else self.script
        running = Running(job, request, record.get("prompt"), script)
        running.images = [image for name in _PICTURES if name in record for image in record[name].images]
        self.requests.append(running)
        self._notify()
        with running.scope:
            async with anyio.create_task_group() as choices:
                for choice in range(request.sampling.n):
                    choices.start_soon(self._speak, running, choice)
            if script.error is not None:
                running.ended.set()  # the edge cancels what failed, which must not count as cancelled
                await self.bus.fail(delivery, script.error, desk="replica")
        with anyio.CancelScope(shield=True):
            if running.scope.cancel_called:
                await self._say_cancelled(running)
            await self.bus.finish(delivery)
        running.ended.set()
        self._notify()

    async def _speak(self, running: Running, choice: int) -> None:
        script = running.script
        pieces = list(script.choices.get(choice, script.pieces))[: running.limit]
        cut = len(script.choices.get(choice, script.pieces)) >= running.limit
        with running.choice_scopes[choice]:
            at = 0
            while at < len(pieces):
                group = [pieces[at]]
                while len(group) < script.per_chunk and at + len(group) < len(pieces):
                    if pieces[at + len(group)].after is not None:
                        break
                    group.append(pieces[at + len(group)])
                if group[0].after is not None:
                    await group[0].after.wait()
                await self._send(running, self.chunk(running, choice, at, group))
                at += len(group)
            if script.before_end is not None:
                await script.before_end.wait()
            if script.error is None:
                await self._finish(running, choice, at, "length" if cut else script.finish)

    async def _say_cancelled(self, running: Running) -> None:
        for choice in range(running.request.sampling.n):
            sent = running.sent[choice]
            if not sent or sent[-1].finish_reason is None:
                at = sum(len(chunk.token_ids) for chunk in sent)
                await self._finish(running, choice, at, "cancelled")

    async def _finish(self, running: Running, choice: int, at: int, reason: str | None) -> None:
        if reason is None:
            await anyio.sleep_forever()
        stops = reason == "stop"
        await self._send(
            running,
            TokenChunk(
                request_id=running.job.request_id,
                attempt=running.job.attempt,
                choice=choice,
                index=at,
                token_ids=(self.end_token,) if stops else (),
                logprobs=running.logprobs((self.end_token,)) if stops else (),
                stop_token=stops,
                finish_reason=reason,
                reasoning_ended_by=running.script.reasoning_ended_by,
                num_prompt_tokens=running.num_prompt_tokens,
                timings_ms={"prefill": 2.0, "decode": 3.0, "queue": 1.0},
            ),
        )

    def chunk(self, running: Running, choice: int, at: int, group: Sequence[Piece]) -> TokenChunk:
        """Return pieces as the tokens of a choice from index `at` on."""
        marks: list[PhaseMark] = []
        phase = group[0].phase
        for index, piece in enumerate(group):
            if index and piece.phase != phase:
                marks.append(PhaseMark(index, 0, piece.phase))
            marks += [PhaseMark(index, offset, inner) for offset, inner in piece.marks]
            phase = piece.marks[-1][1] if piece.marks else piece.phase
        token_ids = tuple(self.token_id(piece.raw) for piece in group)
        return TokenChunk(
            request_id=running.job.request_id,
            attempt=running.job.attempt,
            choice=choice,
            index=at,
            token_ids=token_ids,
            phase=group[0].phase,
            marks=tuple(marks),
            logprobs=running.logprobs(token_ids),
            num_prompt_tokens=running.num_prompt_tokens,
            num_cached_tokens=self._num_cached_tokens(running) if at == 0 else 0,
            prompt_logprobs=running.prompt_logprobs if (choice, at) == (0, 0) else (),
            timings_ms={**running.job.timings_ms, "queue": 1.0, "prefill": 2.0} if at == 0 else {},
            prompt_note=running.prompt.note if at == 0 and running.prompt is not None else None,
        )

    def token_id(self, raw: bytes) -> int:
        """Return the token that has exactly these bytes."""
        assert raw in self._ids, f"{raw!r} is no token of the tiny model; add it to PIECES"
        return self._ids[raw]

    def _num_cached_tokens(self, running: Running) -> int:
        """Whole blocks of a prompt that was seen before, all but the last token."""
        if running.prompt is None:
            return 0
        seen = running.prompt.token_ids in self._cached
        self._cached.add(running.prompt.token_ids)
        return (running.prompt.num_tokens - 1) // 16 * 16 if seen else 0

    async def _send(self, running: Running, chunk: TokenChunk) -> None:
        running.sent[chunk.choice].append(chunk)
        if self.drop(chunk):
            return
        await self.bus.send(running.edge, self.batch(self.transform(chunk)), maxlen=_MAXLEN)

    def batch(self, chunks: Iterable[TokenChunk]) -> TokenBatch:
        """Return chunks as one message to an edge."""
        self._step += 1
        return TokenBatch(replica_id=self.replica_id, step=self._step, chunks=tuple(chunks))
