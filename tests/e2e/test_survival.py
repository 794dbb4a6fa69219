"""kill -9 of a replica in mid-answer, and of the edge with it: the text goes on, and hardly a token is made twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from tests.e2e.house import House, headrace_up, wait_for
from tests.ports import free_port
from tests.processes import command_of
from wire.bus import Bus
from wire.bus.embedded import running_url
from wire.messages import unpack_ids

MODEL = "smollm2-135m-instruct"
SCHEMA = {
    "type": "object",
    "properties": {"story": {"type": "string", "minLength": 300, "maxLength": 400}},
    "required": ["story"],
    "additionalProperties": False,
}
# So long that none has ended when the last has begun well, however fast the machine is.
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 120, "frequency_penalty": 0.4},
    "seed": {"temperature": 1.0, "seed": 7, "max_tokens": 120, "top_p": 0.9},
    "grammar": {
        "temperature": 0,
        "max_tokens": 200,
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}},
    },
    "thinking": {"temperature": 0, "max_tokens": 120, "thinking_token_budget": 20, "stop": ["\n\n\n"]},
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
            text, thought = (choice["delta"].get(name) or "" for name in ("content", "reasoning_content"))
            self.text += text
            self.thoughts += thought
            self.num_pieces += bool(text or thought)  # the first chunk has a role alone, and no token


async def ask_all(house: House, names: Iterable[str] = REQUESTS, *, kill: Any = None) -> dict[str, Answer]:
    """Ask all at once; `kill` is called when every answer has begun well."""
    answers = {name: Answer() for name in names}

    async def ask(http: httpx.AsyncClient, name: str) -> None:
        nonlocal kill
        async with http.stream("POST", "/v1/chat/completions", json=body(name)) as reply:
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
        for name in answers:
            tasks.start_soon(ask, http, name)
    return answers


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path, metrics_port: int) -> Iterator[House]:
    """Two replicas and two edges; a replica is sent what it knows, and fetches nothing from the other.

    A client that leaves is not waited for: some do in mid-answer. No replica is given up that is only slow.
    """
    arguments = ("--replicas=2", "--edges=2", f"--model-dir={smollm2_path.parent}")
    environ = {
        "HEADRACE_METRICS_PORT": str(metrics_port),
        "HEADRACE_KV_SHARING": "false",
        "HEADRACE_RESUME_WAIT_S": "1",
        "HEADRACE_HEARTBEAT_S": "1",
    }
    with headrace_up(tmp_path_factory.mktemp("pair"), *arguments, environ=environ) as house:
        until_ready(house, 2)
        yield house


def until_ready(house: House, num_replicas: int) -> None:
    def ready() -> bool:
        with contextlib.suppress(httpx.HTTPError):  # killed edges are started again
            return house.metric("headrace_replicas_ready") >= num_replicas
        return False

    wait_for(ready, timeout_s=60, what=f"{num_replicas} replicas are ready")


def until_idle(house: House, num_generated: int) -> None:
    """Wait until the balancer has heard that all is done: what it heard last may be seconds old."""

    def idle() -> bool:
        generated = by_replica(house, "headrace_replica_generated_tokens_total")
        return sum(generated.values()) == num_generated and not any(
            by_replica(house, "headrace_replica_running").values()
        )

    wait_for(idle, timeout_s=60, what=f"{num_generated} tokens are reported and nothing runs")


@pytest.mark.anyio
async def test_a_killed_replicas_answers_go_on_where_they_were(pair: House, metrics_port: int) -> None:
    undisturbed: dict[str, Answer] = {}
    for name in REQUESTS:  # one by one, so that all are placed at one replica, which then knows their prompts
        undisturbed |= await ask_all(pair, [name])
        until_idle(pair, sum(answer.usage["completion_tokens"] for answer in undisturbed.values()))
    before = by_replica(pair, "headrace_replica_generated_tokens_total")
    home = max(before, key=lambda replica: before[replica])
    answers = await ask_all(pair, kill=lambda: os.kill(process_of(pair, home), signal.SIGKILL))
    for name, answer in answers.items():
        assert (answer.text, answer.thoughts) == (undisturbed[name].text, undisturbed[name].thoughts), name
        assert answer.usage["completion_tokens"] == undisturbed[name].usage["completion_tokens"]
    json.loads(answers["grammar"].text)
    assert answers["thinking"].usage["headrace"]["reasoning"]["used"] <= 20
    (other,) = (replica for replica in before if replica != home)
    num_moved, num_kept = moved(metrics_port)
    assert num_moved == len(REQUESTS) and num_kept >= _KILL_AFTER * len(REQUESTS)
    rest = sum(answer.usage["completion_tokens"] for answer in answers.values()) - num_kept

    def made() -> float:
        return by_replica(pair, "headrace_replica_generated_tokens_total")[other] - before[other]

    wait_for(lambda: made() >= rest, timeout_s=60, what=f"the other replica reports {rest} tokens")
    assert made() == rest


@pytest.mark.anyio
async def test_with_the_edge_killed_too_the_last_checkpoint_serves(pair: House, metrics_port: int) -> None:
    until_ready(pair, 2)
    kept_before = moved(metrics_port)[1]
    resumable = {"include_usage": True, "resumable": True}
    # So long that it has not ended when all are killed; nobody reads it to its end.
    asked = {**body("greedy"), "max_tokens": 4_000, "stream_options": resumable}
    undisturbed, first, rest, last_id = Answer(), Answer(), Answer(), ""
    async with httpx.AsyncClient(base_url=pair.url, timeout=120, trust_env=False) as http:
        with pytest.raises(httpx.TransportError):
            async with (
                Bus.open(running_url(pair.state_dir) or "") as bus,
                http.stream("POST", "/v1/chat/completions", json=asked) as reply,
            ):
                async for line in reply.aiter_lines():
                    first.take(line)
                    last_id = line.removeprefix("id: ") if line.startswith("id: ") else last_id
                    if last_id and await num_kept(bus, last_id.split(".")[1]) >= 64:
                        kill_what_works_on_it(pair)
        until_ready(pair, 1)
        # Further than what the replica had made when it was killed, and the edges had not told.
        await read(http, asked, rest, len(first.text) + 400, headers={"Last-Event-ID": last_id})
        told = first.text + rest.text
        await read(http, {**asked, "stream_options": {}}, undisturbed, len(told))
    assert told == undisturbed.text[: len(told)]
    assert moved(metrics_port)[1] - kept_before >= 64


async def num_kept(bus: Bus, request_id: str) -> int:
    """Return how many tokens of a request's answer its checkpoint has."""
    found = await bus.record(0, request_id, "checkpoint")
    return len(unpack_ids(found["checkpoint"].token_ids.get(0, b""))) if found else 0


async def read(http: httpx.AsyncClient, asked: dict[str, Any], answer: Answer, length: int, **options: Any) -> None:
    """Read an answer until it has so many characters; then leave."""
    async with http.stream("POST", "/v1/chat/completions", json=asked, **options) as reply:
        assert reply.status_code == 200, await reply.aread()
        async for line in reply.aiter_lines():
            answer.take(line)
            if len(answer.text) >= length:
                return


def by_replica(house: House, name: str) -> dict[str, float]:
    with house.client() as client:
        lines = client.get("/metrics").text.splitlines()
    found = (line.rsplit(" ", 1) for line in lines if line.startswith(f"{name}{{"))
    return {labels.split('replica="')[1].split('"')[0]: float(value) for labels, value in found}


def moved(port: int) -> tuple[float, float]:
    """Return how many requests the balancer has moved, and how many tokens they had."""
    counts = {"headrace_moved_requests_total": 0.0, "headrace_moved_tokens_total": 0.0}
    for at in range(6):
        with contextlib.suppress(httpx.HTTPError):
            for line in httpx.get(
                f"http://127.0.0.1:{port + at}/metrics", trust_env=False, timeout=60
            ).text.splitlines():
                name, _, value = line.replace("{", " ", 1).partition(" ")
                if name in counts:
                    counts[name] += float(value.rsplit(" ", 1)[1])
    return counts["headrace_moved_requests_total"], counts["headrace_moved_tokens_total"]


def kill_what_works_on_it(house: House) -> None:
    """Kill both edges and the replica that has work."""
    wait_for(
        lambda: any(by_replica(house, "headrace_replica_running").values()), timeout_s=60, what="its replica says so"
    )
    running = by_replica(house, "headrace_replica_running")
    replica = max(running, key=lambda name: running[name])
    edges = [process.pid for process in house.family() if "edge" in command_of(process)]
    assert len(edges) == 2 and running[replica] == 1
    for pid in (process_of(house, replica), *edges):
        os.kill(pid, signal.SIGKILL)


def process_of(house: House, replica: str) -> int:
    """Return the process of a replica, by the name in its id."""
    name = replica.removeprefix(f"{MODEL}-").rsplit("-", 1)[0]
    return int(next(one.pid for one in house.family() if f"--replica-name={name}" in command_of(one)))
