"""Keys and ledger of a whole house, and what a killed edge leaves: its request is billed all the same."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import anyio
from typer.testing import CliRunner

from headrace.__main__ import app
from tests.e2e.house import House, headrace_up, wait_for
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


def swept(state_dir: Path) -> list[Entry]:
    """Write what dead edges left, without the patience of a living one, and return the whole ledger."""

    async def sweep() -> list[Entry]:
        async with Bus.open(running_url(state_dir) or "") as bus:
            await Ledger(bus.route).sweep(0)
            return [entry async for _, entry in Ledger(bus.route).read()]

    return anyio.run(sweep)


def edge_of(house: House) -> int:
    """Return the process of the light desks, the edge among them."""
    return next(process.pid for process in house.family() if any(w.endswith(",edge") for w in process.cmdline()))


def test_a_killed_edges_request_is_in_the_ledger_once_with_what_it_cost(tmp_path: Path, smollm2_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    key = headrace("keys", "add", "team", f"--file={keys}").strip()
    arguments = (f"--model-dir={smollm2_path.parent}",)
    with headrace_up(tmp_path, *arguments, environ={"HEADRACE_API_KEYS": str(keys)}) as house, house.client() as client:
        client.headers["authorization"] = f"Bearer {key}"
        assert client.post("/v1/chat/completions", json=BODY, headers={"authorization": "none"}).status_code == 401
        assert client.post("/v1/chat/completions", json={**BODY, "max_tokens": 3}).status_code == 200
        with client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as reply:
            lines = reply.iter_lines()
            while "content" not in next(lines) or '"content":""' in next(lines):
                pass
            os.kill(edge_of(house), signal.SIGKILL)
        wait_for(lambda: len(swept(tmp_path)) == 2, timeout_s=30, what="the killed edge's request is in the ledger")
        assert len(swept(tmp_path)) == 2
        printed = headrace("ledger", "--tenant=team", f"--state-dir={tmp_path}")
    first, second = (json.loads(line) for line in printed.splitlines())
    assert (first["by"], first["end"], first["completion_tokens"]) == ("edge", "length", 3)
    assert (second["by"], second["completion_tokens"]) == ("replica", 40)
    assert second["prompt_tokens"] == first["prompt_tokens"] > 0
