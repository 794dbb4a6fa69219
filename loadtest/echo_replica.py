"""A replica that costs nothing: it answers every job placed on it at once, with as many tokens as were asked for.

What is left of a request's time is the ring's own. It speaks the bus as a model service does; only a model is missing.
"""

from __future__ import annotations

import secrets
import time

import anyio
from anyio.abc import TaskStatus

from wire import topics
from wire.bus import Bus, Delivery
from wire.messages import Job, Prompt, ReplicaStatus, TokenBatch, TokenChunk

MAXLEN = 100_000
_BEAT_S = 0.2


class EchoReplica:
    """Says token `token_id` over and over, one chunk a request."""

    def __init__(self, bus: Bus, model: str, token_id: int, *, partitions: int = 1) -> None:
        self._bus = bus
        self._model = model
        self._token_id = token_id
        self._partitions = partitions
        self._replica_id = f"{model}-echo-{secrets.token_hex(4)}"

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._beat)
            for partition in range(self._partitions):
                tasks.start_soon(self._read, partition)
            task_status.started()

    async def _beat(self) -> None:
        while True:
            status = ReplicaStatus(
                replica_id=self._replica_id,
                model=self._model,
                state="ready",
                sent_at=time.time(),
                num_blocks=100_000,
                num_free_blocks=100_000,
                max_model_len=1 << 20,
                max_num_seqs=4096,
                interval_s=_BEAT_S,
            )
            await self._bus.publish(topics.status(self._model), status, maxlen=1000)
            await anyio.sleep(_BEAT_S)

    async def _read(self, partition: int) -> None:
        stream = topics.replica(partition, self._replica_id)
        reader = self._bus.consumer(stream, group="replica", name=self._replica_id)
        async with anyio.create_task_group() as tasks:
            while True:
                for delivery in await reader.read(64):
                    tasks.start_soon(self._answer, delivery)

    async def _answer(self, delivery: Delivery) -> None:
        job = delivery.message
        assert isinstance(job, Job)
        record = await self._bus.record(job.partition, job.request_id, "prompt")
        prompt: Prompt = record["prompt"]
        chunk = TokenChunk(
            request_id=job.request_id,
            attempt=job.attempt,
            index=0,
            token_ids=(self._token_id,) * prompt.max_tokens,
            finish_reason="length",
            num_prompt_tokens=prompt.num_tokens,
            timings_ms=job.timings_ms,
            prompt_note=prompt.note,
        )
        batch = TokenBatch(replica_id=self._replica_id, step=0, chunks=(chunk,))
        await self._bus.send(job.edge, batch, maxlen=MAXLEN)
        await self._bus.finish(delivery)
