"""kill -9 of a replica in mid-answer: the text goes on as if nothing had been, and no token is made twice."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from tests.e2e.house import House, free_port, headrace_up, wait_for

MODEL = "smollm2-135m-instruct"
SCHEMA = {
    "type": "object",
    "properties": {"story": {"type": "string", "minLength": 80, "maxLength": 160}},
    "required": ["story"],
    "additionalProperties": False,
}
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 32, "frequency_penalty": 0.4},
    "seed": {"temperature": 1.0, "seed": 7, "max_tokens": 32, "top_p": 0.9},
    "grammar": {
        "temperature": 0,
        "max_tokens": 60,
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}},
    },
    "thinking": {"temperature": 0, "max_tokens": 40, "thinking_token_budget": 20, "stop": ["\n\n\n"]},
}
_KILL_AFTER = 8  # pieces of text of every answer
_PREFACE = "The river rises in the hills and runs past nine mills to the sea. " * 8  # worth more than an idle replica


def body(name: str) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": _PREFACE + f"Write a long story about a {name} river."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": name != "grammar",
        "deterministic": True,
        "prompt_cache_key": "one home",
        **REQUESTS[name],
    }


class Answer:
    """What came of a stream."""

    def __init__(self) -> None:
        self.text, self.thoughts, self.num_pieces = "", "", 0
        self.usage: dict[str, Any] = {}

    def take(self, line: str) -> None:
        if not line.startswith("data: {"):
            return
        chunk = json.loads(line[6:])
        assert "error" not in chunk, chunk
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            self.text += choice["delta"].get("content") or ""
            self.thoughts += choice["delta"].get("reasoning_content") or ""
            self.num_pieces += 1


async def ask_all(house: House, *, at_once: int = 4, kill: Any = None) -> dict[str, Answer]:
    """Ask everything; `kill` is called when every answer has begun well."""
    limiter = anyio.CapacityLimiter(at_once)
    answers = {name: Answer() for name in REQUESTS}

    async def ask(http: httpx.AsyncClient, name: str) -> None:
        nonlocal kill
        async with limiter, http.stream("POST", "/v1/chat/completions", json=body(name)) as reply:
            assert reply.status_code == 200, await reply.aread()
            async for line in reply.aiter_lines():
                answers[name].take(line)
                if kill is not None and min(answer.num_pieces for answer in answers.values()) >= _KILL_AFTER:
                    kill, call = None, kill
                    call()

    async with (
        httpx.AsyncClient(base_url=house.url, timeout=120, trust_env=False) as http,
        anyio.create_task_group() as tasks,
    ):
        for name in REQUESTS:
            tasks.start_soon(ask, http, name)
    return answers


def by_replica(house: House, name: str) -> dict[str, float]:
    with house.client() as client:
        lines = client.get("/metrics").text.splitlines()
    found = (line.rsplit(" ", 1) for line in lines if line.startswith(f"{name}{{"))
    return {labels.split('replica="')[1].split('"')[0]: float(value) for labels, value in found}


def moved(port: int) -> dict[str, float]:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("headrace_moved_")]
    return {name.split("{")[0]: float(value) for name, value in lines}


@pytest.mark.anyio
async def test_a_killed_replicas_answers_go_on_where_they_were(tmp_path: Path, smollm2_path: Path) -> None:
    port = free_port()
    arguments = ("--replicas=2", f"--model-dir={smollm2_path.parent}")
    with headrace_up(tmp_path, *arguments, environ={"HEADRACE_METRICS_PORT": str(port)}) as house:
        wait_for(lambda: house.metric("headrace_replicas_ready") == 2, timeout_s=60, what="both replicas are ready")
        undisturbed = await ask_all(house, at_once=1)  # then their prompts are known at one replica
        before = by_replica(house, "headrace_replica_generated_tokens_total")
        home = max(before, key=lambda replica: before[replica])

        def kill() -> None:
            os.kill(process_of(house, home), signal.SIGKILL)

        answers = await ask_all(house, kill=kill)
        for name, answer in answers.items():
            assert (answer.text, answer.thoughts) == (undisturbed[name].text, undisturbed[name].thoughts), name
            assert answer.usage["completion_tokens"] == undisturbed[name].usage["completion_tokens"]
        json.loads(answers["grammar"].text)
        assert answers["thinking"].usage["headrace"]["reasoning"]["used"] <= 20
        found = next(
            counts for counts in (moved(port + at) for at in range(4)) if counts.get("headrace_moved_requests_total")
        )
        assert found["headrace_moved_requests_total"] == len(REQUESTS)
        total = sum(answer.usage["completion_tokens"] for answer in answers.values())
        (other,) = (replica for replica in before if replica != home)
        wait_for(lambda: by_replica(house, "headrace_replica_running").get(other) == 0, timeout_s=10, what="it is idle")
        made = by_replica(house, "headrace_replica_generated_tokens_total")[other] - before[other]
        assert made == total - found["headrace_moved_tokens_total"]
        assert found["headrace_moved_tokens_total"] >= _KILL_AFTER * len(REQUESTS)


def process_of(house: House, replica: str) -> int:
    """Return the process of a replica, by the name in its id."""
    lines = [(process.pid, process.cmdline()) for process in house.family()]
    name = replica.removeprefix(f"{MODEL}-").rsplit("-", 1)[0]
    return next(pid for pid, words in lines if f"--replica-name={name}" in words)
