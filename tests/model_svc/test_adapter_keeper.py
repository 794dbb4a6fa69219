"""A replica keeps the adapters that the record wants: what it has its engine do, and what its heartbeats say of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from model_svc.adapter_keeper import AdapterKeeper
from model_svc.adapter_place import place_below
from model_svc.engine.plan import RunnerInfo
from model_svc.engine_messages import AdapterDone, DropAdapter, LoadAdapter
from model_svc.heartbeat import Heartbeat
from wire.adapter_record import AdapterRecord, WantedAdapter
from wire.adapters import WEIGHTS
from wire.bus import Bus
from wire.messages import AdapterOutcome

MODEL, FOREVER_S = "m", 3600.0


class Engine:
    """Answers loads with the last part of the path as digest, and notes what it was told."""

    def __init__(self) -> None:
        self.told: list[LoadAdapter | DropAdapter] = []
        self.keeper: Any = None

    async def send(self, message: LoadAdapter | DropAdapter) -> None:
        self.told.append(message)
        if isinstance(message, LoadAdapter):
            digest = Path(message.directory).name
            fault = "" if message.digest in ("", digest) else "other files"
            self.keeper.answered(AdapterDone(revision=message.revision, digest="" if fault else digest, fault=fault))

    @property
    def drops(self) -> list[str]:
        return [message.name for message in self.told if isinstance(message, DropAdapter)]


class House:
    """A keeper at work, its engine and heartbeat, and the record."""

    def __init__(self, bus: Bus, folder: Path, *, room: int, grace_s: float) -> None:
        self.record = AdapterRecord(bus, MODEL)
        self.engine = Engine()
        self.heartbeat = Heartbeat(bus, replica_id="r", model=MODEL, interval_s=FOREVER_S)
        self.heartbeat.adapters = ("given",)
        self.heartbeat.info = RunnerInfo(
            num_blocks=1, block_size=1, max_num_seqs=1, max_num_batched_tokens=1, max_model_len=1, vocab_size=1,
            adapter_room=room,
        )  # fmt: skip
        link: Any = self.engine
        self.keeper = AdapterKeeper(self.record, link, self.heartbeat, str(folder), grace_s=grace_s)
        self.engine.keeper = self.keeper

    async def want(self, name: str, path: str) -> WantedAdapter:
        wanted = WantedAdapter(name=name, path=path, revision=f"{name}/{path}")
        assert await self.record.ask(wanted, replace=True)
        return wanted

    async def until(self, seen: Callable[[], bool]) -> None:
        with anyio.fail_after(60):
            while not seen():
                await anyio.sleep(0.005)


@asynccontextmanager
async def at_work(house: House) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        await tasks.start(house.keeper.run)
        yield
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_what_is_wanted_at_the_start_is_there_when_the_replica_is_and_what_comes_later_follows(
    bus: Bus, tmp_path: Path
) -> None:
    house = House(bus, tmp_path, room=4, grace_s=FOREVER_S)
    assert await house.record.serve(await house.want("a", "d1"), "d1")
    stale = await house.want("b", "d2")
    assert await house.record.serve(stale, "d0")  # the files have changed since
    async with at_work(house):
        assert house.heartbeat.adapters == ("given", "a@d1")
        assert house.heartbeat.adapter_outcomes == {
            "a/d1": AdapterOutcome(digest="d1"), stale.revision: AdapterOutcome(fault="other files"),
        }  # fmt: skip
        await house.want("c", "d3")
        await house.until(lambda: "c@d3" in house.heartbeat.adapters)
        await house.want("c", "../d3")
        await house.until(lambda: "c/../d3" in house.heartbeat.adapter_outcomes)
        assert "below adapter_dir" in house.heartbeat.adapter_outcomes["c/../d3"].fault
        loads = [message for message in house.engine.told if isinstance(message, LoadAdapter)]
        assert {Path(message.directory) for message in loads} == {tmp_path / name for name in ("d1", "d2", "d3")}


@pytest.mark.anyio
async def test_one_that_is_wanted_no_longer_stays_for_requests_under_way_unless_its_place_is_needed(
    bus: Bus, tmp_path: Path
) -> None:
    house = House(bus, tmp_path, room=2, grace_s=FOREVER_S)
    assert await house.record.serve(await house.want("a", "d1"), "d1")
    async with at_work(house):
        assert await house.record.serve(await house.want("a", "d2"), "d2")
        both = ("given", "a@d1", "a@d2")
        await house.until(lambda: house.heartbeat.adapters == both and "a/d1" not in house.heartbeat.adapter_outcomes)
        assert not house.engine.drops
        await house.want("b", "d3")
        await house.until(lambda: "b@d3" in house.heartbeat.adapters)
        assert house.heartbeat.adapters == ("given", "a@d2", "b@d3")
        assert house.engine.drops == ["a@d1"]


@pytest.mark.anyio
async def test_after_a_while_the_engine_is_told_to_drop_it(bus: Bus, tmp_path: Path) -> None:
    house = House(bus, tmp_path, room=4, grace_s=0.0)
    await house.want("a", "d1")
    async with at_work(house):
        assert "a@d1" in house.heartbeat.adapters
        await house.record.remove("a")
        await house.until(lambda: house.engine.drops == ["a@d1"])
        assert house.heartbeat.adapters == ("given",) and not house.heartbeat.adapter_outcomes


def test_paths_lead_nowhere_but_below_the_directory(tmp_path: Path) -> None:
    folder, outside = tmp_path / "adapters", tmp_path / "outside"
    (folder / "sql").mkdir(parents=True)
    outside.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "inner").symlink_to(folder / "sql")
    (folder / "files").mkdir()
    (folder / "files" / WEIGHTS).symlink_to(outside / WEIGHTS)
    for path in ("sql", "./sql/", str(folder / "sql"), "inner"):
        assert place_below(folder, path) == (folder / "sql").resolve()
    for path in ("", ".", "..", "../outside", "/", str(outside), "link", "link/x", "files", "sql/../../outside"):
        with pytest.raises(ValueError, match="must be a directory below adapter_dir"):
            place_below(folder, path)
    with pytest.raises(ValueError, match="no path of a directory"):
        place_below(folder, "a\0b")
