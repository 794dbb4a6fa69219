"""Keys and ledger of a whole house, and what a killed edge leaves: its request is billed all the same."""

from __future__ import annotations

import http.client
import json
import os
import signal
from pathlib import Path

import anyio
from typer.testing import CliRunner

from headrace.__main__ import app
from tests.e2e.house import House, headrace_up, wait_for
from tests.processes import command_of, suspend
from wire import topics
from wire.bus import Bus
from wire.bus.embedded import running_url
from wire.ledger import Entry, Ledger

BODY = {
    "model": "smollm2-135m-instruct",
    "messages": [{"role": "user", "content": "Tell me about mills."}],
    "max_tokens": 40,
    "ignore_eos": True,
}


def headrace(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.stderr
    return result.stdout


def ledger(state_dir: Path, *, sweeps: bool) -> list[Entry]:
    """Return the whole ledger; with what dead edges left, without the patience of a living one, if it `sweeps`."""

    async def read() -> list[Entry]:
        async with Bus.open(running_url(state_dir) or "") as bus:
            if sweeps:
                await Ledger(bus.route).sweep(0)
            return [entry async for _, entry in Ledger(bus.route).read()]

    return anyio.run(read)


def placed(state_dir: Path) -> int:
    """Return how many requests lie at the replica."""

    async def count() -> int:
        async with Bus.open(running_url(state_dir) or "") as bus:
            streams = await bus.route.call("", "KEYS", topics.replica(0, "*").replace("{", "\\{"))
            return sum([int(await bus.route.call(name, "XLEN", name)) for name in streams])

    return anyio.run(count)


def edge_of(house: House) -> int:
    """Return the process of the light desks, the edge among them."""
    return int(next(one.pid for one in house.family() if any(word.endswith(",edge") for word in command_of(one))))


def test_a_killed_edges_request_is_in_the_ledger_once_with_what_it_cost(tmp_path: Path, smollm2_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    key = headrace("keys", "add", "team", f"--file={keys}").strip()
    arguments = (f"--model-dir={smollm2_path.parent}",)
    with headrace_up(tmp_path, *arguments, environ={"HEADRACE_API_KEYS": str(keys)}) as house, house.client() as client:
        client.headers["authorization"] = f"Bearer {key}"
        assert client.post("/v1/chat/completions", json=BODY, headers={"authorization": "none"}).status_code == 401
        assert client.post("/v1/chat/completions", json={**BODY, "max_tokens": 3}).status_code == 200
        wait_for(lambda: placed(tmp_path) == 0, timeout_s=60, what="the first request has left the replica")
        wait_for(lambda: len(ledger(tmp_path, sweeps=False)) == 1, timeout_s=60, what="its edge has written its entry")
        engine = next(process for process in house.family() if "model_svc.engine_process" in command_of(process))
        suspend(engine)  # until nobody is there to be told of what it makes
        asking = http.client.HTTPConnection("127.0.0.1", int(house.url.rsplit(":", 1)[1]))
        asking.request("POST", "/v1/chat/completions", json.dumps(BODY), dict(client.headers))
        wait_for(lambda: placed(tmp_path) == 1, timeout_s=60, what="the request is at the replica")
        os.kill(edge_of(house), signal.SIGKILL)
        engine.resume()
        asking.close()
        what = "the killed edge's request is in the ledger"
        wait_for(lambda: len(ledger(tmp_path, sweeps=True)) == 2, timeout_s=60, what=what)
        assert len(ledger(tmp_path, sweeps=True)) == 2
        printed = headrace("ledger", "--tenant=team", f"--state-dir={tmp_path}")
    first, second = (json.loads(line) for line in printed.splitlines())
    assert (first["by"], first["end"], first["completion_tokens"]) == ("edge", "length", 3)
    assert (second["by"], second["completion_tokens"]) == ("replica", 40)
    assert second["prompt_tokens"] == first["prompt_tokens"] > 0
