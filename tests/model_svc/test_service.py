"""The replica on a real bus, its engine a real process: jobs in, tokens out, commands obeyed, nothing left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from model_svc.engine.request import EngineRequest
from model_svc.engine_link import EngineLink
from model_svc.engine_messages import ToEngine
from model_svc.outbox import EDGE_MAXLEN
from tests.model_svc.engine.oracle import answer
from tests.model_svc.house import (
    BLOCK_SIZE,
    END_THINK,
    EOS,
    MODEL,
    ROOT,
    House,
    engines_of,
    house,
    make_model,
    settings_for,
)
from tests.model_svc.scripted_runner import Script, hashed_reply
from tests.processes import suspend
from wire import block_hash, telemetry, topics
from wire.bus import Bus
from wire.messages import (
    BlocksStored,
    Cancel,
    EndReasoning,
    Failure,
    Prompt,
    ReasoningPlan,
    ReportBlocks,
    Resubscribe,
    SamplingParams,
    TokenBatch,
    pack_ids,
    unpack_ids,
)

pytestmark = pytest.mark.anyio

ENDLESS = Script(pieces=[65], num_blocks=16384, max_model_len=65536)


def expected(request_id: str, prompt_ids: list[int], sampling: SamplingParams, choice: int) -> list[int]:
    prompt = Prompt(token_ids=pack_ids(prompt_ids), num_tokens=len(prompt_ids), max_tokens=8)
    request = EngineRequest(request_id=request_id, prompt=prompt, sampling=sampling)
    reply = hashed_reply(300)
    return answer(
        request, choice, reply, eos_ids=(EOS,), token_bytes=lambda _: b"x", max_total_tokens=256
    ).token_ids  # fmt: skip


async def generating(home: House, request_id: str, num_tokens: int = 3) -> None:
    await home.until(lambda: len(home.answer(request_id)) >= num_tokens)


async def all_blocks_are_free(home: House) -> None:
    now = time.time()

    def all_free() -> bool:
        status = home.statuses[-1]
        return status.sent_at > now and status.num_free_blocks == status.num_blocks and status.num_running == 0

    await home.until(all_free)


async def test_jobs_are_answered_token_by_token_and_leave_nothing(
    bus: Bus, bus_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path, Script())
    send, given = EngineLink.send, list[ToEngine]()

    async def noted(link: EngineLink, message: ToEngine) -> None:
        await send(link, message)
        given.append(message)

    monkeypatch.setattr(EngineLink, "send", noted)
    sampling = SamplingParams(n=2, seed=1)
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        [engine] = engines_of(os.getpid())
        suspend(engine)  # until all are there, so that some are computed together
        for number in range(6):
            await home.place(f"r{number}", [number, 2, 3], sampling=sampling)
        with anyio.fail_after(60):
            while sum(isinstance(message, EngineRequest) for message in given) < 6:
                await anyio.sleep(0.01)
        engine.resume()
        for number in range(6):
            for choice in range(2):
                await home.until(lambda key=(f"r{number}", choice): home.finish_reason(*key))
                assert home.answer(f"r{number}", choice) == expected(f"r{number}", [number, 2, 3], sampling, choice)
        await home.until_open_work_is(0)
        await all_blocks_are_free(home)
    first = next(chunk for chunk in home.chunks if chunk.request_id == "r0")
    assert first.timings_ms.keys() == {"tokenizer.work", "model.wait", "queue", "prefill", "decode"}
    assert any(len({chunk.request_id for chunk in batch.chunks}) > 1 for batch in home.batches)


async def test_steps_that_are_sent_together_lose_nothing(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, Script())
    sampling = SamplingParams(seed=1, logprobs=2)
    async with house(bus, settings_for(tmp_path, bus_url, stream_interval=3)) as home:
        await home.place("r", [1, 2, 3], sampling=sampling)
        await home.until(lambda: home.finish_reason("r"))
        assert home.answer("r") == expected("r", [1, 2, 3], sampling, 0)
        assert len(home.chunks) <= 4  # of 1, 3, 3 and 1 tokens, or joined further where the bus was behind
        assert home.chunks[0].num_prompt_tokens == 3 and "prefill" in home.chunks[0].timings_ms
        assert all(len(chunk.logprobs) == len(chunk.token_ids) for chunk in home.chunks)


async def test_the_replica_tells_its_state_from_loading_to_gone(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, Script(num_blocks=40))
    async with house(bus, settings_for(tmp_path, bus_url, replica_name="r7")) as home:
        ready = home.statuses[-1]
    states = list(dict.fromkeys(status.state for status in home.statuses))
    assert states == ["loading", "ready", "draining", "gone"]
    assert ready.replica_id.startswith(f"{MODEL}-r7-")
    assert (ready.num_blocks, ready.num_free_blocks, ready.block_size) == (40, 40, BLOCK_SIZE)
    assert (ready.max_model_len, ready.max_num_seqs, ready.device) == (256, 8, "scripted")


async def test_kv_events_begin_with_a_reset_and_are_repeated_when_asked(
    bus: Bus, bus_url: str, tmp_path: Path
) -> None:  # fmt: skip
    make_model(tmp_path, Script(pieces=[9]))
    names = b"".join(block_hash.chain(ROOT, list(range(1, 9)), BLOCK_SIZE))
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        await home.place("r", list(range(1, 10)), max_tokens=1)
        await home.until(lambda: home.finish_reason("r"))
        await home.command(ReportBlocks(replica_id=home.replica_id))
        with anyio.fail_after(60):
            heard = []
            async for message in bus.watch(topics.kv_events(MODEL)):
                heard.append(message)
                if len(heard) == 3:
                    break
    assert heard == [
        BlocksStored(replica_id=home.replica_id, sequence=0, hashes=b"", reset=True),
        BlocksStored(replica_id=home.replica_id, sequence=1, hashes=names),
        BlocksStored(replica_id=home.replica_id, sequence=2, hashes=names, reset=True),
    ]


async def test_a_cancel_stops_generation_and_gives_everything_back(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, ENDLESS)
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        await home.place("r", [1, 2, 3], max_tokens=60_000)
        await generating(home, "r")
        await home.command(Cancel(request_id="r", attempt=0))
        await home.until(lambda: home.finish_reason("r") == "cancelled")
        await home.until_open_work_is(0)
        await all_blocks_are_free(home)
        await home.command(Cancel(request_id="r", attempt=0))
        await home.command(Cancel(request_id="unknown", attempt=0))
        await home.place("next", [1], max_tokens=2)
        await home.until(lambda: home.finish_reason("next") == "length")


async def test_a_job_cancelled_before_it_was_read_is_not_started(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, Script(pieces=[65]))
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        job = await home.place("other", [1], max_tokens=1)
        stream, home.replica_id = home.stream, "nobody"
        await home.place("r", [1, 2, 3])
        work = await bus.open_work(0, "nobody")
        await bus.cancel(job.partition, "r")
        home.replica_id = stream.rsplit(":", 1)[1]
        # as if it had been placed a moment before the cancel: the entry itself comes without its record's blessing
        await bus.route.call(stream, "XADD", stream, "*", "m", await _raw(bus, "nobody", work[0][0]), "t", time.time())
        await home.until(lambda: home.failures)
        await home.until_open_work_is(0)
    assert [failure.code for failure in home.failures] == ["request_cancelled"]
    assert home.answer("r") == []


async def _raw(bus: Bus, replica_id: str, entry_id: str) -> bytes:
    stream = topics.replica(0, replica_id)
    ((_, fields),) = await bus.route.call(stream, "XRANGE", stream, entry_id, entry_id)
    message: bytes = fields[fields.index(b"m") + 1]
    return message


async def test_thinking_ends_when_the_client_says_so(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, ENDLESS)
    plan = ReasoningPlan(starts_open=True, close_ids=(END_THINK,))
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        await home.place("r", [1, 2, 3], max_tokens=60_000, reasoning=plan)
        await generating(home, "r")
        await home.command(EndReasoning(request_id="r"))
        await home.until(lambda: END_THINK in home.answer("r"))
        noted = await bus.record(0, "r", "closed")
        assert noted["closed"].at == {0: (home.answer("r").index(END_THINK),)}
        await home.command(Cancel(request_id="r", attempt=0))
        await home.until(lambda: home.finish_reason("r"))
    last = home.chunks[-1]
    assert last.reasoning_ended_by == "client"
    assert last.num_reasoning_tokens == home.answer("r").index(END_THINK)


async def test_thinking_ends_also_when_the_word_of_it_overtakes_the_job(
    bus: Bus, bus_url: str, tmp_path: Path
) -> None:  # fmt: skip
    make_model(tmp_path, ENDLESS)
    plan = ReasoningPlan(starts_open=True, close_ids=(END_THINK,))
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        control = topics.control(home.replica_id)
        await home.command(EndReasoning(request_id="r"))
        with anyio.fail_after(60):
            while await bus.route.call(control, "XLEN", control):
                await anyio.sleep(0.01)
        await home.place("r", [1, 2, 3], max_tokens=60_000, reasoning=plan)
        await home.until(lambda: END_THINK in home.answer("r"))
        await home.command(Cancel(request_id="r", attempt=0))
        await home.until(lambda: home.finish_reason("r"))
    assert home.chunks[-1].reasoning_ended_by == "client"


async def test_whoever_asks_for_tokens_that_nobody_keeps_hears_so(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, ENDLESS)
    other = topics.edge("other")
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        await home.command(Resubscribe(request_id="gone", edge=other, from_index=2, attempt=1))
        with anyio.fail_after(60):
            message = await anext(bus.inbox(other))
    assert isinstance(message, Failure)
    assert (message.request_id, message.attempt, message.code) == ("gone", 1, "unavailable")


@pytest.mark.parametrize("running", [True, False])
async def test_tokens_are_sent_again_to_whoever_asks(running: bool, bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, ENDLESS if running else Script(pieces=[1, 2, 3, 4, 5, EOS]))
    other = topics.edge("other")
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        await home.place("r", [1, 2, 3], max_tokens=60_000 if running else 20)
        await (generating(home, "r", 10) if running else home.until(lambda: home.finish_reason("r")))
        await home.command(Resubscribe(request_id="r", edge=other, from_index=2))
        ids: list[int] = []
        with anyio.fail_after(60):
            async for message in bus.inbox(other):
                assert isinstance(message, TokenBatch)
                for chunk in message.chunks:
                    assert chunk.index == 2 + len(ids)
                    ids += chunk.token_ids
                if len(ids) >= 4:
                    break
        assert ids[:4] == ([65] * 4 if running else [3, 4, 5, EOS])
        if running:
            await home.command(Cancel(request_id="r", attempt=0))
            await home.until_open_work_is(0)


async def test_tokens_go_to_the_edge_that_holds_the_request_now(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, Script(pieces=[1, 2, 3, EOS]))
    other = topics.edge("other")
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        await home.place("r", [1, 2, 3], holder=other, attempt=1)
        ids: list[int] = []
        with anyio.fail_after(60):
            async for message in bus.inbox(other):
                assert isinstance(message, TokenBatch)
                ids += [token_id for chunk in message.chunks for token_id in chunk.token_ids]
                if message.chunks[-1].finish_reason:
                    break
        assert ids == [1, 2, 3, EOS]
        assert home.answer("r") == []


async def test_whoever_takes_a_request_over_while_its_record_is_read_gets_its_tokens(
    bus: Bus, bus_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path, Script(pieces=[1, 2, 3, EOS]))
    first, second = topics.edge("first"), topics.edge("second")
    open_record = Bus.open_record

    async def meanwhile(self: Bus, *args: Any) -> Any:
        record = await open_record(self, *args)
        control = topics.control(home.replica_id)
        await home.command(Resubscribe(request_id="r", edge=second))
        with anyio.fail_after(60):
            while await bus.route.call(control, "XLEN", control):
                await anyio.sleep(0.01)
        return record

    monkeypatch.setattr(Bus, "open_record", meanwhile)
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        await home.place("r", [1, 2, 3], holder=first)
        with anyio.fail_after(60):
            message = await anext(bus.inbox(second))
        assert isinstance(message, TokenBatch)
        await home.until_open_work_is(0)


async def test_a_deadline_ends_a_request_that_waits_or_runs(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    minutes = Script(pieces=[65], num_blocks=1 << 18, max_model_len=1 << 22)  # longer than is waited for free blocks
    make_model(tmp_path, minutes)
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        await home.place("late", [1, 2, 3], deadline_s=-1.0)
        await home.place("runs", [1, 2, 3], max_tokens=4_000_000, deadline_s=0.5)
        await home.until(lambda: len(home.failures) == 2)
        await home.until_open_work_is(0)
        await all_blocks_are_free(home)
    assert {failure.request_id: failure.code for failure in home.failures} == {
        "late": "deadline_exceeded",
        "runs": "deadline_exceeded",
    }


async def test_a_request_the_engine_refuses_fails_with_its_reason(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, Script(num_blocks=4))
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        await home.place("r", [1] * 20)
        await home.until(lambda: home.failures)
        await home.until_open_work_is(0)
    (failure,) = home.failures
    assert (failure.code, failure.param, failure.desk) == ("context_length_exceeded", "messages", "model")


async def test_a_moved_request_goes_on_from_its_checkpoint(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, Script())
    whole = expected("r", [1, 2, 3], SamplingParams(), 0)
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        await home.place("r", [1, 2, 3], attempt=1, checkpoint={0: whole[:5]})
        await home.until(lambda: home.finish_reason("r"))
    assert home.answer("r") == whole[5:]
    assert (home.chunks[0].index, home.chunks[0].attempt) == (5, 1)


async def test_what_nobody_wants_more_of_is_not_gone_on_with(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, ENDLESS)
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        sampling = SamplingParams(n=2)
        await home.place(
            "r", [1], attempt=1, sampling=sampling, max_tokens=600, checkpoint={0: [65], 1: [65]}, ended=(0,)
        )
        await home.until_open_work_is(0)
    ends = {chunk.choice: chunk.finish_reason for chunk in home.chunks if chunk.finish_reason}
    assert ends == {0: "cancelled", 1: "length"}


async def test_a_moved_request_can_be_asked_for_from_its_first_token(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, Script())
    whole = expected("r", [1, 2, 3], SamplingParams(), 0)
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        await home.place("r", [1, 2, 3], attempt=1, checkpoint={0: whole[:5]})
        await home.until(lambda: home.finish_reason("r"))
        home.chunks.clear()
        await home.command(Resubscribe(request_id="r", edge=home.edge))
        await home.until(lambda: home.finish_reason("r"))
        assert home.answer("r") == whole
        assert home.chunks[0].num_prompt_tokens == 3
    assert home.statuses[-1].num_generated_tokens == len(whole) - 5


async def test_what_is_generated_is_written_down_now_and_then(
    bus: Bus, bus_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model_svc.checkpoints.EVERY_S", 0.01)
    make_model(tmp_path, ENDLESS)
    async with house(bus, settings_for(tmp_path, bus_url, drain_s=0.0)) as home:
        await home.place("r", [1, 2, 3], max_tokens=60_000)
        await home.place("scored", [1, 2, 3], max_tokens=60_000, sampling=SamplingParams(logprobs=1))
        with anyio.fail_after(60):
            while not (record := await bus.record(0, "r", "checkpoint")):
                await anyio.sleep(0.01)
        kept = unpack_ids(record["checkpoint"].token_ids[0])
        await home.until(lambda: len(home.answer("r")) >= len(kept))
        assert len(kept) >= 64 and kept == home.answer("r")[: len(kept)]
        assert await bus.record(0, "scored", "checkpoint") == {}


async def test_every_partition_is_read(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, Script(pieces=[EOS]))
    async with house(bus, settings_for(tmp_path, bus_url, partitions=3)) as home:
        for partition in range(3):
            await home.place(f"r{partition}", [1], partition=partition)
        for partition in range(3):
            await home.until(lambda request_id=f"r{partition}": home.finish_reason(request_id))


async def test_draining_finishes_what_runs(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, Script(pieces=[65], num_blocks=600, max_model_len=2000))
    async with house(bus, settings_for(tmp_path, bus_url, drain_s=150.0)) as home:
        await home.place("r", [1, 2, 3], max_tokens=600)
        await generating(home, "r")
    assert (home.finish_reason("r"), len(home.answer("r"))) == ("length", 600)
    assert await bus.open_work(0, home.replica_id) == []
    assert home.statuses[-1].state == "gone"


async def test_what_does_not_end_in_time_is_left_for_others(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, ENDLESS)
    async with house(bus, settings_for(tmp_path, bus_url, drain_s=0.1)) as home:
        await home.place("r", [1, 2, 3], max_tokens=60_000)
        await generating(home, "r")
    assert [job.request_id for _, job in await bus.open_work(0, home.replica_id)] == ["r"]
    assert home.statuses[-1].state == "gone"


async def test_an_edge_that_reads_nothing_delays_nobody_else(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, Script(pieces=[1, 2, 3, 4, 5, 6, 7, 8]))
    deaf = topics.edge("deaf")
    fill = f"for i = 1, {EDGE_MAXLEN} do redis.call('XADD', KEYS[1], '*', 'm', 'x') end"
    await bus.route.call(deaf, "EVAL", fill, 1, deaf)
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        home.edge = deaf
        await home.place("stuck", [1])
        home.edge = topics.edge("test")
        for number in range(5):
            await home.place(f"r{number}", [1])
        for number in range(5):
            await home.until(lambda request_id=f"r{number}": home.finish_reason(request_id))
        await home.until_open_work_is(1)
        await bus.route.call(deaf, "XTRIM", deaf, "MAXLEN", 0)
        with anyio.fail_after(60):
            async for message in bus.inbox(deaf):
                assert isinstance(message, TokenBatch)
                assert [chunk.token_ids for chunk in message.chunks] == [(1, 2, 3, 4, 5, 6, 7, 8)]
                break
        await home.until_open_work_is(0)


async def test_others_hear_that_a_replica_goes_before_its_engine_has_ended(
    bus: Bus, bus_url: str, tmp_path: Path
) -> None:
    make_model(tmp_path, Script(pieces=[1, 2, EOS]))
    ending: list[str] = []
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        [engine] = engines_of(os.getpid())
        suspend(engine)  # as one that is in a long step
        go_on = home.heard

        def heard() -> None:
            if home.statuses[-1].state == "gone" and not ending:
                ending.append(engine.status() if engine.is_running() else "ended")
                engine.resume()
            go_on()

        home.heard = heard  # type: ignore[method-assign]
    assert ending == [psutil.STATUS_STOPPED]


async def test_one_span_tells_queue_prefill_and_decode(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, Script(pieces=[1, 2, EOS]))
    exporter = InMemorySpanExporter()
    telemetry.setup("test", exporter=exporter)
    try:
        async with house(bus, settings_for(tmp_path, bus_url)) as home:
            await home.place("r", [1, 2, 3], traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01")
            await home.until(lambda: home.finish_reason("r"))
            await home.until_open_work_is(0)
    finally:
        telemetry.shutdown()
    (span,) = [span for span in exporter.get_finished_spans() if span.name == f"model {MODEL}"]
    assert span.context is not None and f"{span.context.trace_id:032x}" == "ab" * 16
    assert span.attributes is not None
    assert span.attributes[telemetry.USAGE_OUTPUT_TOKENS] == 3
    assert span.attributes[telemetry.USAGE_INPUT_TOKENS] == 3
    assert span.attributes[telemetry.RESPONSE_FINISH_REASONS] == ("stop",)
    assert {"headrace.queue_ms", "headrace.prefill_ms", "headrace.decode_ms"} <= span.attributes.keys()
