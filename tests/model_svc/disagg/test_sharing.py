"""Two replicas on a real bus, their engines real processes with a real tiny model: one computes, the other fetches."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from model_svc.disagg.orders import ReadBlocks, WriteBlocks
from model_svc.disagg.sharing import BlockSharing
from model_svc.engine.kv_layout import KvLayout
from tests.model_svc.house import BLOCK_SIZE, House, house, settings_for
from tests.model_svc.saved_llama import folder
from wire.bus import Bus
from wire.ledger import Ledger
from wire.messages import ReplicaStatus, SamplingParams, Source

__all__ = ["folder"]

pytestmark = pytest.mark.anyio

PROMPT = [(7 * number) % 251 for number in range(10 * BLOCK_SIZE + 3)]
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@asynccontextmanager
async def replica(bus: Bus, url: str, folder: Path, name: str, **changes: Any) -> AsyncIterator[House]:
    options = {
        "runner": "model_svc.runner.load:load_runner", "dtype": "float32", "num_blocks": 64, "speculate": "off",
        "state_dir": str(folder), "replica_name": name,
    }  # fmt: skip
    async with house(bus, settings_for(folder, url, **(options | changes))) as home:
        await home.until(lambda: home.statuses[-1].kv_address)
        yield home


def source_of(status: ReplicaStatus, num_blocks: int = 10, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "replica_id": status.replica_id,
        "address": status.kv_address,
        "num_tokens": num_blocks * BLOCK_SIZE,
    }
    return {"source": Source(**(fields | changes))}


async def ask(home: House, request_id: str, **placement: Any) -> list[int]:
    await home.place(request_id, PROMPT, sampling=GREEDY, placement=placement)
    await home.until(lambda: home.finish_reason(request_id))
    return home.answer(request_id)


@pytest.mark.parametrize("host", ["", "127.0.0.1"], ids=["unix", "tcp"])
async def test_a_prompt_computed_by_one_replica_is_a_cache_hit_of_another(
    bus: Bus, bus_url: str, folder: Path, host: str
) -> None:
    async with (
        replica(bus, bus_url, folder, "a", kv_host=host) as a,
        replica(bus, bus_url, folder, "b", kv_host=host) as b,
    ):
        computed = await ask(a, "r")
        fetched = await ask(b, "s", **source_of(a.statuses[-1]))
        assert fetched == computed
        [first] = [chunk for chunk in b.chunks if chunk.request_id == "s" and chunk.num_prompt_tokens]
        assert first.num_cached_tokens == first.num_fetched_tokens == 10 * BLOCK_SIZE
        assert first.timings_ms["fetch"] > 0
        await b.until(lambda: b.statuses[-1].num_fetched_blocks == 10)
        await a.until(lambda: a.statuses[-1].num_given_blocks == 10)
        again = await ask(b, "t", cached_tokens=6 * BLOCK_SIZE, **source_of(a.statuses[-1]))
        assert again == computed
        [first] = [chunk for chunk in b.chunks if chunk.request_id == "t" and chunk.num_prompt_tokens]
        assert (first.num_cached_tokens, first.num_fetched_tokens) == (10 * BLOCK_SIZE, 4 * BLOCK_SIZE)
        ledger = Ledger(bus.route)
        await b.until_open_work_is(0)
        await ledger.sweep(0)
        noted = {entry.request_id: (entry.cached_tokens, entry.fetched_tokens) async for _, entry in ledger.read()}
        assert noted["s"] == (10 * BLOCK_SIZE, 10 * BLOCK_SIZE)


async def test_a_source_that_is_gone_costs_the_client_nothing(bus: Bus, bus_url: str, folder: Path) -> None:
    async with replica(bus, bus_url, folder, "a") as a:
        computed = await ask(a, "r")
        gone = a.statuses[-1]
    async with replica(bus, bus_url, folder, "b") as b:
        assert await ask(b, "s", **source_of(gone)) == computed
        assert await ask(b, "t", **source_of(gone, address="tcp:127.0.0.1:9")) == computed
        await b.until(lambda: b.statuses[-1].num_failed_fetches == 2)
    assert not b.failures


async def test_a_replica_that_shares_nothing_computes(bus: Bus, bus_url: str, folder: Path) -> None:
    async with replica(bus, bus_url, folder, "a") as a:
        computed = await ask(a, "r")
        options = settings_for(
            folder, bus_url, runner="model_svc.runner.load:load_runner", dtype="float32", num_blocks=64,
            speculate="off", replica_name="b", kv_sharing=False,
        )  # fmt: skip
        async with house(bus, options) as b:
            assert await ask(b, "s", **source_of(a.statuses[-1])) == computed
            assert b.statuses[-1].kv_address == ""


async def test_a_replica_leaves_no_socket_behind(bus: Bus, bus_url: str, folder: Path) -> None:
    async with replica(bus, bus_url, folder, "a") as a:
        path = Path(a.statuses[-1].kv_address.split(":", 2)[2])
        assert path.is_socket() and path.stat().st_mode & 0o077 == 0
        assert path.stat().st_uid == os.getuid()
    assert not path.exists()


class NoEngine:
    """An engine that nobody comes to ask."""

    staging_fd = -1

    async def send(self, message: ReadBlocks | WriteBlocks) -> None:
        raise AssertionError(message)


async def test_sharing_that_does_not_come_about_leaves_no_socket_behind(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    form = KvLayout(dtype="float32", element_bytes=4, block_size=BLOCK_SIZE, heads_first=False, shapes=((1, 8), (1, 8)))
    settings = settings_for(tmp_path / "no models", bus_url, state_dir=str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no models"):
        async with BlockSharing.open(bus, NoEngine(), settings, form, "a"):
            pass
    assert not any((tmp_path / "kv").iterdir())
