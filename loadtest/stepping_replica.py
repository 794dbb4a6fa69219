"""A replica that costs next to nothing and speaks like a real one: each step, one token for every running request.

    python -m loadtest.stepping_replica REDIS_URL MODEL TOKEN_ID WINDOW

It says WINDOW steps at once, by courier as a model service does, and the next ones when few lie in the edge's inbox: an
edge that keeps up finds several in a read, as one does that serves several fast replicas. Streams that come in the same
instant are all open before it begins. What tokens cost that come alone shows in loadtest.token_path.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import groupby

import anyio

from loadtest.echo_replica import MAXLEN, EchoReplica
from wire.bus import Bus, Delivery
from wire.messages import Job, Prompt, TokenBatch, TokenChunk

_CALM_S = 0.02  # without a new request; else the first streams would be over before the last ones are open
_LYING = 32  # steps that an edge works on between two looks of ours; half of what it would join for a slow client


@dataclass
class _Running:
    delivery: Delivery
    job: Job
    prompt: Prompt
    num_said: int = 0


class SteppingReplica(EchoReplica):
    """Says its token once a step to everybody."""

    def __init__(self, bus: Bus, model: str, token_id: int, *, window: int, partitions: int = 1) -> None:
        super().__init__(bus, model, token_id, partitions=partitions)
        self._window = window
        self._running: dict[str, _Running] = {}
        self._courier = bus.courier()
        self._came_at = 0.0
        self._num_under_way = 0
        self._heard = anyio.Event()

    async def step_forever(self) -> None:
        """Step until cancelled."""
        step = 0
        while True:
            if not self._running or anyio.current_time() < self._came_at + _CALM_S:
                await anyio.sleep(0.001)
                continue
            by_edge = sorted(self._running.values(), key=lambda running: running.job.edge)
            for edge, group in groupby(by_edge, key=lambda running: running.job.edge):
                await self._say(edge, list(group), step)
                await self._until_taken(edge)
            step += self._window

    async def _say(self, edge: str, group: list[_Running], step: int) -> None:
        """Send a window of steps in one write, each a batch of its own, and wait until they have arrived."""
        for number in range(self._window):
            running = [one for one in group if one.num_said < one.prompt.max_tokens]
            if running:
                chunks = tuple(self._next_chunk(one) for one in running)
                await self._post(edge, TokenBatch(replica_id=self._replica_id, step=step + number, chunks=chunks))
        await self._until_heard(edge)
        for one in group:
            if one.num_said == one.prompt.max_tokens:
                del self._running[one.job.request_id]
                await self._bus.finish(one.delivery)

    async def _post(self, edge: str, batch: TokenBatch) -> None:
        if not self._courier.may_post(edge):
            await self._until_heard(edge)
            await self._courier.prepare(edge)
        self._num_under_way += 1
        self._courier.post(edge, batch, maxlen=MAXLEN, tell=self._told, patient=True)

    def _told(self, arrived: bool) -> None:
        assert arrived, "the edge's inbox is full"
        self._num_under_way -= 1
        if not self._num_under_way:
            self._heard.set()

    async def _until_heard(self, edge: str) -> None:
        while self._num_under_way:
            self._heard = anyio.Event()
            self._courier.ask(edge)
            await self._heard.wait()

    async def _until_taken(self, edge: str) -> None:
        """Wait until few steps lie there; some of those that the edge has read may not be removed yet."""
        while await self._bus.route.call(edge, "XLEN", edge) >= self._window + _LYING:  # noqa: ASYNC110 - another process
            await anyio.sleep(0.0005)

    def _next_chunk(self, running: _Running) -> TokenChunk:
        index, running.num_said = running.num_said, running.num_said + 1
        return TokenChunk(
            request_id=running.job.request_id,
            attempt=running.job.attempt,
            index=index,
            token_ids=(self._token_id,),
            finish_reason="length" if running.num_said == running.prompt.max_tokens else None,
            num_prompt_tokens=running.prompt.num_tokens,
            timings_ms=running.job.timings_ms if index == 0 else {},
            prompt_note=running.prompt.note if index == 0 else None,
        )

    async def _answer(self, delivery: Delivery) -> None:
        job = delivery.message
        assert isinstance(job, Job)
        record = await self._bus.record(job.partition, job.request_id, "prompt")
        self._running[job.request_id] = _Running(delivery, job, record["prompt"])
        self._came_at = anyio.current_time()


async def _main(url: str, model: str, token_id: int, window: int) -> None:
    async with Bus.open(url) as bus, anyio.create_task_group() as tasks:
        replica = SteppingReplica(bus, model, token_id, window=window)
        await tasks.start(replica.serve)
        await replica.step_forever()


if __name__ == "__main__":
    arguments = (sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    anyio.run(_main, *arguments, backend_options={"use_uvloop": True})
