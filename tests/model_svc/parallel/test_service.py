"""A replica whose model is on two processes: any of them goes, and all go; the work is left where others find it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from model_svc.engine_link import EngineDiedError
from model_svc.layers.group import RankError
from model_svc.parallel import crew
from model_svc.parallel.load import check_equal, devices_of, load_runner
from model_svc.runner.load import RunnerConfigError
from tests.model_svc.house import engines_of, house, settings_for
from tests.model_svc.saved_llama import folder
from tests.model_svc.test_service_faults import dying
from tests.processes import command_of, has_ended
from wire.bus import Bus
from wire.messages import SamplingParams

__all__ = ["folder"]

OPTIONS = {
    "runner": "model_svc.runner.load:load_runner",
    "tensor_parallel": 2,
    "dtype": "float32",
    "num_blocks": 256,
    "speculate": "off",
}
STAGED = {**OPTIONS, "tensor_parallel": 1, "pipeline_parallel": 2}
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


def ranks_of(engine: psutil.Process) -> list[psutil.Process]:
    return [child for child in engine.children() if "model_svc.parallel.rank" in command_of(child)]


@pytest.mark.anyio
async def test_a_replica_on_two_processes_answers_and_leaves_none_behind(bus: Bus, bus_url: str, folder: Path) -> None:
    async with house(bus, settings_for(folder, bus_url, **OPTIONS)) as home:
        (engine,) = engines_of(os.getpid())
        (rank,) = ranks_of(engine)
        await home.place("r", [1, 2, 3], max_tokens=12, sampling=ENDLESS)
        await home.until(lambda: home.finish_reason("r"))
        assert len(home.answer("r")) == 12
    assert not engine.is_running()
    assert has_ended(rank)


@pytest.mark.anyio
@pytest.mark.parametrize(("who", "options"), [("rank", OPTIONS), ("engine", STAGED)], ids=["rank", "first stage"])
async def test_a_process_that_is_lost_takes_all_down_and_leaves_the_work(
    who: str, options: dict[str, Any], bus: Bus, bus_url: str, folder: Path
) -> None:
    async with dying(bus, folder, bus_url, **options) as (home, ends):
        await home.until(lambda: home.statuses and home.statuses[-1].state == "ready")
        (engine,) = engines_of(os.getpid())
        (rank,) = ranks_of(engine)
        await home.place("r", [1, 2, 3], max_tokens=900, sampling=ENDLESS)
        await home.until(lambda: home.answer("r"))
        (rank if who == "rank" else engine).kill()
        await home.until(lambda: ends)
        await home.until(lambda: home.statuses[-1].state == "gone")
        assert [job.request_id for _, job in await bus.open_work(0, home.replica_id)] == ["r"]
    assert isinstance(ends[0], EngineDiedError)
    assert ("rank 1 has ended with exit code -9" if who == "rank" else "exit code -9") in str(ends[0])
    psutil.wait_procs([engine, rank], timeout=60)
    assert not engine.is_running()
    assert has_ended(rank)


@pytest.mark.anyio
async def test_a_rank_that_is_lost_while_nothing_runs_is_noticed(bus: Bus, bus_url: str, folder: Path) -> None:
    async with dying(bus, folder, bus_url, **OPTIONS) as (home, ends):
        await home.until(lambda: home.statuses and home.statuses[-1].state == "ready")
        (engine,) = engines_of(os.getpid())
        ranks_of(engine)[0].kill()
        await home.until(lambda: ends)
    assert isinstance(ends[0], EngineDiedError)


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (3, "tensor_parallel 3 does not divide the model's 4 attention heads"),
        (32, "tensor_parallel 32 does not divide the model's 4 attention heads"),
    ],
)
def test_a_model_that_cannot_be_cut_so_is_refused(size: int, says: str, folder: Path) -> None:
    with pytest.raises(RunnerConfigError, match=says):
        load_runner(folder / "scripted", tensor_parallel=size)


@pytest.mark.parametrize(
    ("device", "names", "says"),
    [
        ("cuda", ["H100"], "tensor_parallel 2 needs 2 cards from cuda on; this machine has 1 card"),
        ("cuda:1", ["H100", "H100"], "tensor_parallel 2 needs 2 cards from cuda:1 on; this machine has 2 cards"),
        ("cuda", ["H100", "A10"], "tensor_parallel 2 needs equal cards, not A10 and H100"),
    ],
)
def test_cards_that_are_missing_or_unequal_are_refused(
    device: str, names: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(names))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: names[index])
    with pytest.raises(RunnerConfigError, match=says):
        check_equal(devices_of(device, 2, "tensor_parallel"))
    names[:] = ["A10", "H100", "H100"]
    check_equal(devices_of("cuda:1", 2, "tensor_parallel"))
    assert devices_of("cuda:0", 2, "pipeline_parallel") == ["cuda:0", "cuda:1"]  # stages may be on unequal ones


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import time; time.sleep(600)", "rank 1 has not started within 0.2 s"),
        ("raise SystemExit(3)", "rank 1 has ended with exit code 3"),
    ],
)
def test_a_rank_that_does_not_start_is_named(
    code: str, says: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "COMMAND", (sys.executable, "-c", code))
    monkeypatch.setattr(crew, "_GRACE_S", 0.1)
    with pytest.raises(RankError, match=says):
        load_runner(folder / "scripted", tensor_parallel=2, patience_s=0.2 if "sleep" in code else 60.0)
    assert not [child for child in psutil.Process().children() if code in command_of(child)]
