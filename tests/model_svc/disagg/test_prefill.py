"""A replica that is asked for a prompt alone computes its whole blocks and gives the job back, without a word more."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import msgspec
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from model_svc.disagg.prefill import prefill_of
from model_svc.engine.plan import Picture
from model_svc.engine.request import EngineRequest
from tests.model_svc.disagg.test_sharing import GREEDY, PROMPT, ask, replica
from tests.model_svc.disagg.test_sharing import folder as folder
from tests.model_svc.house import BLOCK_SIZE, House, engines_of
from tests.processes import suspend
from wire import telemetry, topics
from wire.bus import Bus
from wire.messages import EndReasoning, ImageSpan, Job, Prefilled, Prompt, SamplingParams, Source, pack_ids

pytestmark = pytest.mark.anyio


async def job_at_the_balancer(bus: Bus, home: House) -> Job:
    """Take the job that the replica has given back."""
    reader = bus.consumer(topics.balancer(0, "scripted"), group="balancer", name="test")
    with anyio.fail_after(60):
        while True:
            for delivery in await reader.read(1):
                assert isinstance(delivery.message, Job)
                return delivery.message


async def test_the_job_comes_back_with_its_blocks_and_another_replica_goes_on(
    bus: Bus, bus_url: str, folder: Path
) -> None:
    async with replica(bus, bus_url, folder, "p") as p, replica(bus, bus_url, folder, "d") as d:
        job = await p.place("r", PROMPT, sampling=GREEDY, placement={"prefill": True})
        back = await job_at_the_balancer(bus, p)
        assert (back.request_id, back.attempt) == (job.request_id, 0)
        assert back.timings_ms["prefill.work"] > 0
        record = await bus.record(0, "r", "prefilled")
        prefilled = record["prefilled"]
        assert prefilled == Prefilled(replica_id=p.statuses[-1].replica_id, num_tokens=10 * BLOCK_SIZE)
        await p.until_open_work_is(0)
        assert not p.chunks
        assert p.statuses[-1].num_generated_tokens == 0
        source = Source(
            replica_id=prefilled.replica_id, address=p.statuses[-1].kv_address, num_tokens=prefilled.num_tokens
        )
        fetched = await ask(d, "s", source=source)
        [first] = [chunk for chunk in d.chunks if chunk.request_id == "s" and chunk.num_prompt_tokens]
        assert first.num_fetched_tokens == 10 * BLOCK_SIZE
        assert await ask(p, "t") == fetched


def test_an_adapters_prompt_is_computed_with_the_adapter() -> None:
    prompt = Prompt(token_ids=pack_ids(range(20)), num_tokens=20, block_size=8)
    whole = prefill_of(EngineRequest(request_id="r", prompt=prompt, adapter="one"))
    assert whole is not None
    assert whole.adapter == "one"


def test_pictures_that_begin_in_whole_blocks_come_along() -> None:
    images = tuple(ImageSpan(position=at, num_tokens=6, digest=name) for at, name in ((1, b"a"), (6, b"b"), (15, b"c")))
    pictures = tuple(
        Picture(name=image.digest, tiles=b"", num_tiles=1, height=1, width=1, num_features=6) for image in images
    )
    prompt = Prompt(token_ids=pack_ids(range(22)), num_tokens=22, block_size=8, images=images)
    whole = prefill_of(EngineRequest(request_id="r", prompt=prompt, pictures=pictures))
    assert whole is not None
    assert whole.prompt.num_tokens == 16
    assert (whole.prompt.images, whole.pictures) == (images, pictures)
    shorter = msgspec.structs.replace(prompt, token_ids=pack_ids(range(16)), num_tokens=16)
    whole = prefill_of(EngineRequest(request_id="r", prompt=shorter, pictures=pictures))
    assert whole is not None
    assert whole.prompt.images == images[:2]


async def test_a_trace_tells_who_computed_the_prompt_and_who_answered(bus: Bus, bus_url: str, folder: Path) -> None:
    exporter = InMemorySpanExporter()
    telemetry.setup("model", environ={}, exporter=exporter)
    try:
        async with replica(bus, bus_url, folder, "p") as p:
            await p.place("r", PROMPT, sampling=GREEDY, placement={"prefill": True})
            await job_at_the_balancer(bus, p)
            await p.until_open_work_is(0)
            await ask(p, "s")
    finally:
        telemetry.shutdown()
    prefill, answer = exporter.get_finished_spans()
    assert (prefill.name, answer.name) == ("prefill scripted", "model scripted")
    assert prefill.attributes is not None and answer.attributes is not None
    assert prefill.attributes[telemetry.PREFILLED_TOKENS] == 10 * BLOCK_SIZE
    assert float(str(prefill.attributes["headrace.prefill_ms"])) > 0
    assert prefill.attributes[telemetry.REPLICA_ID] == p.statuses[-1].replica_id
    assert answer.attributes[telemetry.USAGE_CACHE_READ_INPUT_TOKENS] == 10 * BLOCK_SIZE


async def test_the_same_replica_takes_the_job_again_if_it_comes_back(bus: Bus, bus_url: str, folder: Path) -> None:
    async with replica(bus, bus_url, folder, "p") as p:
        await p.place("r", PROMPT, sampling=GREEDY, placement={"prefill": True})
        back = await job_at_the_balancer(bus, p)
        placement = (await bus.record(0, "r", "placement"))["placement"]
        await bus.update_record(0, "r", {"placement": msgspec.structs.replace(placement, prefill=False)})
        stream = topics.replica(0, p.replica_id)
        await bus.send(stream, back, maxlen=10)
        await p.until(lambda: p.finish_reason("r"))
        assert len(p.answer("r")) == 8


async def test_thinking_that_was_ended_during_the_prefill_stays_ended(bus: Bus, bus_url: str, folder: Path) -> None:
    async with replica(bus, bus_url, folder, "p") as p:
        [engine] = engines_of(os.getpid())
        suspend(engine)
        await p.place("r", PROMPT, sampling=GREEDY, placement={"prefill": True})
        await p.until_open_work_is(1)
        await p.command(EndReasoning(request_id="r"))
        while await bus.route.call(topics.control(p.replica_id), "XLEN", topics.control(p.replica_id)):
            await anyio.sleep(0.01)
        engine.resume()
        await job_at_the_balancer(bus, p)
        record = await bus.record(0, "r", "closed")
        assert record["closed"].at == {0: (0,)}


@pytest.mark.parametrize(("num_tokens", "left"), [(3, None), (4, None), (5, 4), (8, 4), (9, 8)])
def test_a_prefill_is_of_whole_blocks_before_the_last_token(num_tokens: int, left: int | None) -> None:
    prompt = Prompt(token_ids=pack_ids(range(num_tokens)), num_tokens=num_tokens, block_size=4)
    whole = prefill_of(EngineRequest(request_id="r", prompt=prompt))
    assert (whole.prompt.num_tokens if whole is not None else None) == left
    scored = EngineRequest(request_id="r", prompt=prompt, sampling=SamplingParams(prompt_logprobs=1))
    assert prefill_of(scored) is None
