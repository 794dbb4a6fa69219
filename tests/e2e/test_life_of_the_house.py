"""Starting, stopping and being killed: nothing is left running, nothing is left held."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import httpx
import psutil
import pytest

from tests.e2e.house import House, headrace_up, wait_for
from tests.ports import free_port
from tests.processes import command_of

MODEL = "smollm2-135m-instruct"


def body(text: str, tokens: int) -> dict[str, object]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }


@pytest.mark.anyio
async def test_fifty_streams_with_random_disconnects_leave_nothing_behind(house: House) -> None:
    wait_for(lambda: house.metric("headrace_replica_running") == 0, timeout_s=60, what="nothing of a test before runs")
    free_before = house.metric("headrace_replica_free_blocks")
    random_ = random.Random(1)

    async def one(number: int) -> None:
        leave_after = random_.choice([0, 1, 3, 8, 1000])
        async with (
            httpx.AsyncClient(base_url=house.url, timeout=120, trust_env=False) as client,
            client.stream("POST", "/v1/chat/completions", json=body(f"Story {number}.", 16)) as reply,
        ):
            assert reply.status_code == 200
            seen = 0
            async for line in reply.aiter_lines():
                seen += line.startswith("data:")
                if seen > leave_after:
                    return

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(one, number)
    wait_for(lambda: house.metric("headrace_inflight_requests") == 0, timeout_s=60, what="in-flight table empty")
    wait_for(lambda: house.metric("headrace_replica_running") == 0, timeout_s=60, what="no sequence running")
    wait_for(lambda: house.metric("headrace_replica_free_blocks") == free_before, timeout_s=60, what="all blocks back")


def test_ctrl_c_finishes_the_open_answer_and_leaves_no_process(tmp_path: Path, smollm2_path: Path) -> None:
    arguments, patient = ("--edges=2", f"--model-dir={smollm2_path.parent}"), {"HEADRACE_DRAIN_S": "100"}
    with headrace_up(tmp_path, *arguments, environ=patient) as house, house.client() as client:
        family = house.family()
        assert sum("serve edge" in " ".join(command_of(process)) for process in family) == 2
        with client.stream("POST", "/v1/chat/completions", json=body("Tell me about mills.", 24)) as reply:
            lines = reply.iter_lines()
            next(lines)
            house.process.send_signal(signal.SIGINT)
            rest = list(lines)
        assert rest[-2:] == ["data: [DONE]", ""] or "data: [DONE]" in rest[-3:]
        assert house.process.wait(120) == 0
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive


def test_ctrl_c_while_it_starts_ends_it_and_leaves_no_process(tmp_path: Path, smollm2_path: Path) -> None:
    arguments = (f"--state-dir={tmp_path}", f"--model-dir={smollm2_path.parent}", f"--port={free_port()}")
    with subprocess.Popen([sys.executable, "-m", "headrace", "up", *arguments], start_new_session=True) as process:
        try:
            top = psutil.Process(process.pid)
            wait_for((tmp_path / "logs" / f"model-{MODEL}.log").exists, timeout_s=60, what="a child")
            family = top.children(recursive=True)
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 130
        finally:
            process.kill()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive


def test_killing_the_supervisor_leaves_no_process(tmp_path: Path, smollm2_path: Path) -> None:
    with headrace_up(tmp_path, f"--model-dir={smollm2_path.parent}") as house:
        family = house.family()
        assert len(family) > 3
        os.kill(house.process.pid, signal.SIGKILL)
        house.process.wait(60)
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive, [command_of(process) for process in alive]


def test_every_desk_as_its_own_process_answers_too(tmp_path: Path, smollm2_path: Path) -> None:
    with headrace_up(tmp_path, "--split", "--replicas=2", f"--model-dir={smollm2_path.parent}") as house:
        commands = [" ".join(command_of(process)) for process in house.family()]
        for role in ("history", "tokenizer", "prefix", "balancer", "edge"):
            assert any(f"serve {role}" in command for command in commands)
        assert sum("serve model" in command for command in commands) == 2
        with house.client() as client:
            reply = client.post("/v1/chat/completions", json={**body("Hi.", 4), "stream": False})
        assert reply.status_code == 200
        assert reply.json()["usage"]["completion_tokens"] == 4
