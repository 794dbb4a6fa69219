"""Adapters that come and go: an operator's wish is seen through by every replica, or comes back with what is wrong."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from gateway.edge.adapters import RuntimeAdapters
from gateway.edge.readiness import Replicas
from tests.gateway.edge.asks import ASK, CHAT
from tests.gateway.edge.tenancy.conftest import KeyFile, key_file
from tests.ring import MODEL, MakeRing, Ring
from wire import block_hash, topics
from wire.adapter_record import AdapterRecord, WantedAdapter
from wire.messages import AdapterOutcome, ReplicaStatus

__all__ = ["key_file"]
pytestmark = pytest.mark.anyio

Outcome = Callable[[WantedAdapter], AdapterOutcome]
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@asynccontextmanager
async def keeping(ring: Ring, outcome: Outcome) -> AsyncIterator[None]:
    """Have the ring's replica do as replicas do: say what comes of each wish in the record."""

    async def keep() -> None:
        async for wanted in AdapterRecord(ring.bus, MODEL).follow():
            told = {one.revision: outcome(one) for one in wanted.by_revision.values()}
            names = tuple(f"{one.name}@{told[one.revision].digest}" for one in wanted.by_revision.values())
            ring.replica.told = {"adapter_room": 4, "adapter_outcomes": told, "adapters": names}
            await ring.replica.beat_once()

    ring.replica.told = {"adapter_room": 4}
    await ring.replica.beat_once()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep)
        yield
        tasks.cancel_scope.cancel()


async def load(ring: Ring, **changes: Any) -> httpx.Response:
    """Ask until an edge has heard that there is room; what it says else is an answer."""
    body = {"lora_name": "late", "lora_path": "sql/1", **changes}
    with anyio.fail_after(60):
        while True:
            answer = await ring.http.post(LOAD, json=body)
            if answer.status_code != 503:
                return answer
            await anyio.sleep(0.02)


async def names(http: httpx.AsyncClient) -> list[str]:
    return [model["id"] for model in (await http.get("/v1/models")).json()["data"]]


async def test_nothing_changes_unless_the_setting_allows_it_and_there_is_room(ring: Ring, make_ring: MakeRing) -> None:
    for path, more in ((LOAD, {"lora_path": "sql"}), (UNLOAD, {})):
        refused = await ring.http.post(path, json={"lora_name": "late"} | more)
        assert refused.status_code == 403 and "adapter_dir" in refused.json()["error"]["message"]
    async with ring.another_edge(adapter_dir="/adapters") as http:
        without = await http.post(LOAD, json={"lora_name": "late", "lora_path": "sql"})
        assert without.status_code == 503
        assert (await http.post(UNLOAD, json={"lora_name": "late"})).status_code == 404


async def test_an_adapter_is_served_by_every_edge_until_it_is_unloaded(make_ring: MakeRing) -> None:
    async with make_ring(adapter_dir="/adapters") as ring, keeping(ring, lambda _: AdapterOutcome(digest="d1")):
        assert (await load(ring)).text == "Success: LoRA adapter 'late' added successfully."
        assert await names(ring.http) == [MODEL, "late"]
        answer = await ring.http.post(CHAT, json={**ASK, "model": "late"})
        assert answer.json()["model"] == "late"
        prompt = ring.replica.requests[-1].prompt
        assert prompt is not None and prompt.adapter == "late@d1"
        secret = await ring.bus.secret("block-hash")
        assert prompt.block_root == block_hash.root(secret, model=MODEL, adapter="late@d1", block_size=16)
        async with ring.another_edge() as other:
            with anyio.fail_after(60):
                while "late" not in await names(other):
                    await anyio.sleep(0.01)
            again = await load(ring)
            assert again.status_code == 400 and again.json()["error"]["param"] == "lora_name"
            assert (await other.post(UNLOAD, json={"lora_name": "late"})).status_code == 200
            assert await names(other) == [MODEL]
        with anyio.fail_after(60):
            while "late" in await names(ring.http):
                await anyio.sleep(0.01)
        assert not (await AdapterRecord(ring.bus, MODEL).read()).by_revision


async def test_one_in_place_of_another_goes_by_another_name_on_its_way(make_ring: MakeRing) -> None:
    async with (
        make_ring(adapter_dir="/adapters") as ring,
        keeping(ring, lambda one: AdapterOutcome(digest="d2" if one.path == "sql/2" else "d1")),
    ):
        assert (await load(ring)).status_code == 200
        assert (await load(ring, lora_path="sql/2", load_inplace=True)).status_code == 200
        await ring.http.post(CHAT, json={**ASK, "model": "late"})
        prompt = ring.replica.requests[-1].prompt
        assert prompt is not None and prompt.adapter == "late@d2"
        [served] = (await AdapterRecord(ring.bus, MODEL).read()).by_revision.values()
        assert (served.path, served.digest) == ("sql/2", "d2")


async def test_what_one_replica_cannot_load_is_served_by_none(make_ring: MakeRing) -> None:
    faults = {"bad": AdapterOutcome(fault="adapter_config.json: use_dora true is not supported")}
    async with (
        make_ring(adapter_dir="/adapters") as ring,
        keeping(ring, lambda one: faults.get(one.path, AdapterOutcome(digest="d1"))),
    ):
        refused = (await load(ring, lora_path="bad")).json()["error"]
        assert refused["param"] == "lora_path"
        assert "use_dora true is not supported" in refused["message"] and ring.replica.replica_id in refused["message"]

        async def other_files() -> None:
            async for wanted in AdapterRecord(ring.bus, MODEL).follow():
                told = {revision: AdapterOutcome(digest="d9") for revision in wanted.by_revision}
                await ring.bus.publish(topics.status(MODEL), _status("other", adapter_outcomes=told), maxlen=1000)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other_files)
            with anyio.fail_after(60):
                while not any("headrace_replica_ready" in line and "other" in line for line in await shown(ring)):
                    await anyio.sleep(0.01)
            refused = (await load(ring)).json()["error"]
            assert refused["param"] == "lora_path" and "different files" in refused["message"]
            tasks.cancel_scope.cancel()
        assert await names(ring.http) == [MODEL]
        assert not (await AdapterRecord(ring.bus, MODEL).read()).by_revision


async def shown(ring: Ring) -> list[str]:
    return (await ring.http.get("/metrics")).text.splitlines()


async def test_all_ready_replicas_are_waited_for_and_no_others() -> None:
    served: Any = Bases()
    bus: Any = None
    replicas = Replicas((MODEL,))
    adapters = RuntimeAdapters(bus, served, replicas)
    told = {"wish": AdapterOutcome(digest="d1")}
    replicas.note(_status("a", adapter_outcomes=told))
    replicas.note(_status("b"))
    replicas.note(_status("c", state="loading"))
    with anyio.move_on_after(0) as late:
        await adapters._loaded(MODEL, "wish")
    assert late.cancelled_caught
    replicas.note(_status("b", adapter_outcomes=told))
    assert await adapters._loaded(MODEL, "wish") == "d1"


class Bases:
    """What an edge serves, as far as it is asked here."""

    generating = ()


def _status(replica_id: str, state: str = "ready", **told: Any) -> ReplicaStatus:
    return ReplicaStatus(
        replica_id=replica_id, model=MODEL, state=state, sent_at=time.time(), interval_s=600.0, adapter_room=4, **told
    )


async def test_a_wrong_field_is_named(make_ring: MakeRing) -> None:
    async with make_ring(adapter_dir="/adapters") as ring:
        for changes, param in (
            ({"lora_name": "a@b"}, "lora_name"), ({"lora_name": MODEL}, "lora_name"), ({"lora_path": ""}, "lora_path"),
            ({"model": "nobody"}, "model"),
        ):  # fmt: skip
            refused = await ring.http.post(LOAD, json={"lora_name": "late", "lora_path": "sql", **changes})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_with_keys_only_an_operators_may(make_ring: MakeRing, key_file: KeyFile) -> None:
    key_file.write(alice={}, olga={"operator": True})
    async with make_ring(adapter_dir="/adapters", api_keys=str(key_file.path)) as ring:
        for path, more, status in ((LOAD, {"lora_path": "sql"}, 503), (UNLOAD, {}, 404)):
            body = {"lora_name": "late", **more}
            refused = await ring.http.post(path, json=body, headers={"authorization": "Bearer alice"})
            assert refused.status_code == 403 and "operator" in refused.json()["error"]["message"]
            allowed = await ring.http.post(path, json=body, headers={"authorization": "Bearer olga"})
            assert allowed.status_code == status
