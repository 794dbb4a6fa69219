"""A replica in two stages: it answers, and any of its processes that goes takes all with it."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from model_svc.engine_link import EngineDiedError
from tests.model_svc.house import engines_of, house, settings_for
from tests.model_svc.parallel.test_service import ENDLESS, OPTIONS, folder, ranks_of
from tests.model_svc.test_service_faults import dying
from wire.bus import Bus
from wire.settings import SettingsError

__all__ = ["folder"]
STAGED = {**OPTIONS, "tensor_parallel": 1, "pipeline_parallel": 2}


@pytest.mark.anyio
async def test_a_replica_in_two_stages_answers_and_leaves_none_behind(bus: Bus, bus_url: str, folder: Path) -> None:
    async with house(bus, settings_for(folder, bus_url, **STAGED)) as home:
        (engine,) = engines_of(os.getpid())
        (rank,) = ranks_of(engine)
        for name in ("a", "b", "c"):
            await home.place(name, [1, 2, 3], max_tokens=12, sampling=ENDLESS)
        for name in ("a", "b", "c"):
            await home.until(lambda name=name: home.finish_reason(name))
            assert len(home.answer(name)) == 12
            assert home.answer(name) == home.answer("a")
    assert not engine.is_running()
    assert not rank.is_running()


@pytest.mark.anyio
@pytest.mark.parametrize("who", ["stage", "engine"])
async def test_a_stage_that_is_lost_takes_all_down_and_leaves_the_work(
    who: str, bus: Bus, bus_url: str, folder: Path
) -> None:
    async with dying(bus, folder, bus_url, **STAGED) as (home, ends):
        await home.until(lambda: home.statuses and home.statuses[-1].state == "ready")
        (engine,) = engines_of(os.getpid())
        (rank,) = ranks_of(engine)
        await home.place("r", [1, 2, 3], max_tokens=900, sampling=ENDLESS)
        await home.until(lambda: home.answer("r"))
        (rank if who == "stage" else engine).kill()
        await home.until(lambda: ends)
        assert [job.request_id for _, job in await bus.open_work(0, home.replica_id)] == ["r"]
    assert isinstance(ends[0], EngineDiedError)
    assert ("rank 1 has ended with exit code -9" if who == "stage" else "exit code -9") in str(ends[0])
    psutil.wait_procs([engine, rank], timeout=60)
    assert not engine.is_running()
    assert not rank.is_running()


@pytest.mark.parametrize("other", [{"tensor_parallel": 2}, {"speculate": "ngram"}, {"role": "prefill"}])
def test_settings_that_do_not_go_with_stages_are_refused(other: dict[str, object], bus_url: str, folder: Path) -> None:
    with pytest.raises(SettingsError, match="pipeline_parallel and"):
        settings_for(folder, bus_url, **{**STAGED, **other})
