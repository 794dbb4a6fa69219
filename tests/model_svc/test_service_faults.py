"""Deaths: whichever process goes, the other follows at once, and the work is left where others find it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from model_svc.engine_link import EngineDiedError
from model_svc.service import serve
from tests.model_svc.house import MODEL, House, engines_of, make_model, settings_for
from tests.model_svc.scripted_runner import Script
from wire.bus import Bus

pytestmark = pytest.mark.anyio

ENDLESS = Script(pieces=[65], num_blocks=16384, max_model_len=65536)


def leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def dying(bus: Bus, folder: Path, url: str, **changes: Any) -> AsyncIterator[tuple[House, list[BaseException]]]:
    """A house whose service is expected to end by itself; its error is noted."""
    ends: list[BaseException] = []

    async def run() -> None:
        try:
            await serve(settings_for(folder, url, **changes))
        except BaseException as error:
            ends.append(leaf(error))
        home.heard()

    home = House(bus)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(home.listen)
        tasks.start_soon(run)
        yield home, ends
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("fault", ["crash", "hang", "kill"])
async def test_an_engine_that_fails_takes_its_service_down_and_leaves_the_work(
    fault: str, bus: Bus, bus_url: str, tmp_path: Path
) -> None:  # fmt: skip
    at = {"crash": {"crash_at_step": 5}, "hang": {"hang_at_step": 5}, "kill": {}}[fault]
    make_model(tmp_path, Script(pieces=[65], num_blocks=16384, max_model_len=65536, **at))
    stall_s = 1.0 if fault == "hang" else 3600.0
    async with dying(bus, tmp_path, bus_url, stall_s=stall_s) as (home, ends):
        await home.until(lambda: home.statuses and home.statuses[-1].state == "ready")
        await home.place("r", [1, 2, 3], max_tokens=60_000)
        await home.until(lambda: len(home.answer("r")) >= 3 or ends)  # a busy machine may seem to hang at once
        if fault == "kill":
            (engine,) = engines_of(os.getpid())
            engine.kill()
        await home.until(lambda: ends)
        await home.until(lambda: home.statuses[-1].state == "gone")
        assert [job.request_id for _, job in await bus.open_work(0, home.replica_id)] == ["r"]
    assert isinstance(ends[0], EngineDiedError)
    assert {"crash": "the script says crash", "hang": "said nothing for 1 s", "kill": "exit code -9"}[fault] in str(
        ends[0]
    )
    assert not engines_of(os.getpid())


async def test_a_model_that_does_not_load_is_told_in_one_sentence(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    path = make_model(tmp_path, Script())
    (path / "script.json").write_text("{")
    async with dying(bus, tmp_path, bus_url) as (home, ends):
        await home.until(lambda: ends)
    assert isinstance(ends[0], EngineDiedError)
    assert "DecodeError" in str(ends[0])
    assert "ready" not in {status.state for status in home.statuses}


async def test_a_service_killed_with_9_takes_its_engine_along(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, ENDLESS)
    settings = settings_for(tmp_path, bus_url)
    flags = [
        f"--{name.replace('_', '-')}={','.join(value) if isinstance(value, tuple) else value}"
        for name in ("redis_url", "model_dir", "models", "block_size", "runner", "max_num_seqs")
        if (value := getattr(settings, name))
    ]
    home = House(bus)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(home.listen)
        process = await anyio.open_process([sys.executable, "-m", "model_svc", *flags], stderr=subprocess.DEVNULL)
        try:
            await home.until(lambda: home.statuses and home.statuses[-1].state == "ready")
            await home.place("r", [1, 2, 3], max_tokens=60_000)
            await home.until(lambda: home.answer("r"))
            (engine,) = engines_of(process.pid)
        finally:
            process.send_signal(signal.SIGKILL)
            await process.wait()
        gone, alive = await anyio.to_thread.run_sync(lambda: psutil.wait_procs([engine], timeout=60))
        assert gone and not alive
        tasks.cancel_scope.cancel()


async def test_sigterm_drains_and_exits_cleanly(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, Script(pieces=[65], num_blocks=600, max_model_len=2000))
    settings = settings_for(tmp_path, bus_url)
    flags = [
        f"--redis-url={bus_url}",
        f"--model-dir={tmp_path}",
        f"--models={MODEL}",
        "--block-size=4",
        "--drain-s=150",
    ]
    home = House(bus)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(home.listen)
        command = [sys.executable, "-m", "model_svc", *flags, f"--runner={settings.runner}", "--drain-s=150"]
        process = await anyio.open_process(command, stderr=subprocess.DEVNULL)
        await home.until(lambda: home.statuses and home.statuses[-1].state == "ready")
        await home.place("r", [1, 2, 3], max_tokens=300)
        await home.until(lambda: home.answer("r"))
        process.send_signal(signal.SIGTERM)
        with anyio.fail_after(60):
            code = await process.wait()
        await home.until(lambda: home.statuses[-1].state == "gone")
        await home.until(lambda: home.finish_reason("r"))
        tasks.cancel_scope.cancel()
    assert code == 0
    assert len(home.answer("r")) == 300
