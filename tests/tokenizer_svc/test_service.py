"""The desk on a real bus: a job in, its prompt on the job record, the job at the prefix desk."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from tests.consume import consume
from tests.tokenizer_svc.model_directories import THINKING, write_chatml
from tokenizer_svc.service import serve
from tokenizer_svc.settings import TokenizerSettings
from wire import block_hash, topics
from wire.bus import Bus, Delivery
from wire.messages import ChatMessage, Failure, Job, Prompt, Recalled, ReplicaStatus, Request, unpack_ids
from wire.model_card import ModelCardError
from wire.settings import SettingsError

pytestmark = pytest.mark.anyio

SLOW = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def job(request_id: str, model: str = "fast") -> Job:
    return Job(request_id=request_id, partition=0, model=model, edge=topics.edge("e"), deadline=time.time() + 30)


def ask(text: str, model: str = "fast") -> Request:
    return Request(model=model, messages=(ChatMessage(role="user", content=text),))


@asynccontextmanager
async def desk(bus_url: str, tmp_path: Path) -> AsyncIterator[None]:
    write_chatml(tmp_path / "fast")
    write_chatml(tmp_path / "thinking", template=THINKING)
    write_chatml(tmp_path / "slow", template=SLOW)
    settings = TokenizerSettings(redis_url=bus_url, model_dir=str(tmp_path), models=("fast", "thinking", "slow"))
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve, settings)
        yield
        tasks.cancel_scope.cancel()


async def next_delivery(bus: Bus, model: str = "fast") -> Delivery:
    with anyio.fail_after(60):
        async for delivery in consume(bus, topics.prefix(0, model), group="prefix", consumer="test"):
            return delivery
    raise AssertionError("the stream ended")


async def admit(bus: Bus, request_id: str, model: str = "fast", **fields: Any) -> None:
    await bus.admit(job(request_id, model), fields, to=topics.tokenizer(0, model), ttl_s=60)


async def prompt_of(bus: Bus, delivery: Delivery) -> Prompt:
    assert isinstance(delivery.message, Job)
    prompt = (await bus.record(0, delivery.message.request_id, "prompt"))["prompt"]
    assert isinstance(prompt, Prompt)
    return prompt


async def test_a_job_gets_its_prompt_and_goes_to_the_prefix_desk(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    async with desk(bus_url, tmp_path):
        await admit(bus, "a", request=ask("hello there, how are you today?"))
        delivery = await next_delivery(bus)
        prompt = await prompt_of(bus, delivery)
    root = block_hash.root(await bus.secret("block-hash"), model="fast", block_size=16)
    names = b"".join(block_hash.chain(root, unpack_ids(prompt.token_ids), 16))
    assert (prompt.block_root, prompt.block_hashes) == (root, names)
    assert isinstance(delivery.message, Job)
    assert {"tokenizer.wait", "tokenizer.work"} <= delivery.message.timings_ms.keys()


async def test_what_the_history_desk_recalled_is_part_of_the_prompt(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    earlier = (ChatMessage(role="user", content="one"), ChatMessage(role="assistant", content="two"))
    async with desk(bus_url, tmp_path):
        await admit(bus, "a", request=ask("three"), recalled=Recalled(messages=earlier))
        recalled = await prompt_of(bus, await next_delivery(bus))
        whole = Request(model="fast", messages=(*earlier, ChatMessage(role="user", content="three")))
        await admit(bus, "b", request=whole)
        assert (await prompt_of(bus, await next_delivery(bus))).token_ids == recalled.token_ids


async def test_what_replicas_have_room_for_counts_in_the_prompt(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    status = ReplicaStatus(
        replica_id="r", model="fast", state="ready", sent_at=0.0, interval_s=1e6, block_size=16, num_blocks=4,
        max_model_len=4096,
    )  # fmt: skip
    async with desk(bus_url, tmp_path):
        for number in range(1000):  # until the desk listens
            await bus.publish(topics.status("fast"), status, maxlen=10)
            await admit(bus, f"a{number}", request=ask("hello"))
            prompt = await prompt_of(bus, await next_delivery(bus))
            if prompt.num_tokens + prompt.max_tokens == 4 * 16 + 1:
                return
    raise AssertionError(f"{prompt.max_tokens} tokens for the answer")


async def test_a_refused_request_ends_at_its_edge(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    async with desk(bus_url, tmp_path):
        await admit(bus, "a", request=Request(model="fast"))
        with anyio.fail_after(60):
            async for message in bus.inbox(topics.edge("e")):
                assert isinstance(message, Failure)
                assert (message.code, message.param, message.desk) == ("invalid_request", "input", "tokenizer")
                break


async def test_a_job_without_a_request_ends_at_once(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    async with desk(bus_url, tmp_path):
        await admit(bus, "a")
        with anyio.fail_after(60):
            async for message in bus.inbox(topics.edge("e")):
                assert isinstance(message, Failure)
                assert (message.code, message.desk) == ("internal_error", "tokenizer")
                break


async def test_endless_templates_delay_nobody_and_end_by_themselves(
    bus: Bus, bus_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0  # stands still, so that they are endless indeed

    def clock() -> float:
        time.sleep(0.001)  # three threads that never wait would leave the others little of a busy machine
        return now_s

    monkeypatch.setattr("tokenizer_svc.sandbox.time", SimpleNamespace(monotonic=clock, thread_time=clock))
    async with desk(bus_url, tmp_path):
        for n in range(3):
            await admit(bus, f"slow{n}", "slow", request=ask("x", "slow"))
        await admit(bus, "a", request=ask("hi"))
        await next_delivery(bus)
        now_s = 100.0
        codes = []
        with anyio.fail_after(60):
            async for message in bus.inbox(topics.edge("e")):
                assert isinstance(message, Failure)
                codes.append(message.code)
                if len(codes) == 3:
                    break
        assert codes == ["template_refused"] * 3


async def test_a_missing_model_stops_the_desk_with_its_name(bus_url: str, tmp_path: Path) -> None:
    settings = TokenizerSettings(redis_url=bus_url, model_dir=str(tmp_path), models=("nowhere",))
    with pytest.raises(ModelCardError, match="nowhere"):
        await serve(settings)


@pytest.mark.parametrize("wrong", [{"tokenizer_threads": 0}, {"template_timeout_s": 0.0}, {"template_timeout_s": 61.0}])
async def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        TokenizerSettings(**wrong)  # type: ignore[arg-type]
