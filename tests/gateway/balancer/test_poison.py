"""A request that kills whatever runs it: it alone ends in a failure, those that came beside it are answered.

Replicas are real, with an engine process that really dies, and are started again; the balancer and the edge's table of
requests are real, too.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from gateway.balancer.desk import BalancerDesk
from gateway.balancer.recovery import MAX_LOSSES
from gateway.balancer.service import serve_streams
from gateway.balancer.settings import BalancerSettings
from gateway.edge.flight import Flight
from gateway.edge.inflight import InFlight
from model_svc.engine.request import EngineRequest
from model_svc.engine_link import EngineDiedError
from model_svc.service import serve
from model_svc.settings import ModelSettings
from tests.model_svc.engine.oracle import answer
from tests.model_svc.house import BLOCK_SIZE, EOS, MODEL, ROOT, make_model, settings_for
from tests.model_svc.scripted_runner import Script, hashed_reply
from wire import topics
from wire.bus import Bus
from wire.errors import DeadLetterError, HeadraceError
from wire.messages import (
    Failure,
    Job,
    Prompt,
    ReportTokens,
    Request,
    SamplingParams,
    TokenBatch,
    TokenReport,
    pack_ids,
)

pytestmark = pytest.mark.anyio

EDGE = topics.edge("e")
DEADLY = 249
NUM_TOKENS = 40


class Edge:
    """Asks, collects, and tells the balancer what it has."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.table = InFlight(10_000)
        self.answers: dict[str, list[int]] = {}
        self.errors: dict[str, HeadraceError] = {}

    async def read(self) -> None:
        async for message in self.bus.inbox(EDGE):
            match message:
                case TokenBatch():
                    for gap in self.table.deliver(message):
                        await self.bus.send(topics.control(gap.replica_id), gap.question(EDGE), maxlen=100)
                case Failure():
                    self.table.fail(message, DeadLetterError(message.message))
                case ReportTokens():
                    report = TokenReport(
                        request_id=message.request_id, checkpoint=self.table.checkpoint(message.request_id)
                    )
                    await self.bus.send(message.reply_to, report, maxlen=100)

    async def collect(self, flight: Flight) -> None:
        found = self.answers[flight.request_id] = []
        try:
            while True:
                for chunk in await flight.take():
                    found += chunk.token_ids
                    if chunk.finish_reason is not None:
                        return
        except HeadraceError as error:
            self.errors[flight.request_id] = error


def prompt_of(*ids: int) -> Prompt:
    return Prompt(
        token_ids=pack_ids(ids), num_tokens=len(ids), block_root=ROOT, block_size=BLOCK_SIZE, max_tokens=NUM_TOKENS
    )


def expected(request_id: str, prompt: Prompt) -> list[int]:
    request = EngineRequest(request_id=request_id, prompt=prompt, sampling=SamplingParams())
    return answer(
        request, 0, hashed_reply(250), eos_ids=(EOS,), token_bytes=lambda _: b"x", max_total_tokens=2000
    ).token_ids


class Houses:
    """Replicas that are started again when they die, as a supervisor does."""

    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings
        self.deaths = 0

    async def keep(self) -> None:
        while True:
            try:
                await serve(self.settings)
            except BaseExceptionGroup as group:
                died, other = group.split(EngineDiedError)
                if died is None or other is not None:
                    raise
                self.deaths += 1


@asynccontextmanager
async def running(bus: Bus, settings: ModelSettings, num_replicas: int) -> AsyncIterator[tuple[Edge, Houses]]:
    edge, houses = Edge(bus), Houses(settings)
    chosen = BalancerSettings(models=(MODEL,))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(edge.read)
        desk = BalancerDesk(bus, chosen, answer_s=60.0)
        await tasks.start(serve_streams, bus, chosen, desk)
        for _ in range(num_replicas):
            tasks.start_soon(houses.keep)
        yield edge, houses
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("num_replicas", "dies_after"), [(1, 0), (2, 0), (2, 3)])
async def test_only_the_request_that_kills_replicas_ends_in_a_failure(
    bus: Bus, bus_url: str, tmp_path: Path, num_replicas: int, dies_after: int
) -> None:
    make_model(
        tmp_path, Script(dies_of=DEADLY, dies_after=dies_after, vocab_size=250, num_blocks=4096, max_model_len=2000)
    )
    settings = settings_for(tmp_path, bus_url, drain_s=0.0, heartbeat_s=5.0)  # the living are not taken for dead
    prompts = {f"r{number}": prompt_of(number, 2, 3) for number in range(12)}
    prompts["poison"] = prompt_of(1, DEADLY, 3)
    async with running(bus, settings, num_replicas) as (edge, houses):
        with ExitStack() as table:
            async with anyio.create_task_group() as tasks:
                for request_id, prompt in sorted(prompts.items()):
                    job = Job(request_id=request_id, partition=0, model=MODEL, edge=EDGE, deadline=time.time() + 120)
                    flight = table.enter_context(edge.table.open(request_id, deadline=job.deadline))
                    tasks.start_soon(edge.collect, flight)
                    fields = {"request": Request(model=MODEL, sampling=SamplingParams()), "prompt": prompt}
                    await bus.admit(job, fields, to=topics.balancer(0, MODEL), ttl_s=120)
        assert edge.errors.keys() == {"poison"} and "replicas in a row" in str(edge.errors["poison"])
        for request_id, prompt in prompts.items():
            if request_id != "poison":
                assert edge.answers[request_id] == expected(request_id, prompt), request_id
        assert houses.deaths == MAX_LOSSES
