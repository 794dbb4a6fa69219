"""`headrace keys` and `headrace ledger`, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from typer.testing import CliRunner

from gateway.edge.tenancy.keyring import Keyring
from headrace.__main__ import app
from wire.bus import Bus
from wire.ledger import Entry, Ledger

COLUMNS = {"COLUMNS": "200"}


def run(*words: str, **environ: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words), env={**COLUMNS, **environ})
    return result.exit_code, result.stdout, result.stderr


def test_a_key_is_printed_once_and_its_file_opens_the_door(tmp_path: Path) -> None:
    path = tmp_path / "new" / "keys.toml"
    code, key, _ = run("keys", "add", "team", "--file", str(path), "--tokens-per-minute", "500", "--model", "m")
    assert code == 0
    _, second, _ = run("keys", "add", "team", "--id", "team-2", HEADRACE_API_KEYS=str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert key.strip() not in path.read_text()
    keyring = Keyring(path)
    found, other = keyring.find(key.strip()), keyring.find(second.strip())
    assert found is not None and (found.id, found.tokens_per_minute, found.models) == ("team", 500, ("m",))
    assert other is not None and other.id == "team-2"
    code, listed, _ = run("keys", "list", "--file", str(path))
    assert code == 0 and "team-2" in listed and "500" in listed


def test_a_tenants_name_may_look_like_mark_up(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    code, key, said = run("keys", "add", "[/team]", "--id", "one", "--file", str(path))
    assert code == 0 and key and "[/team]" in said
    assert "[/team]" in run("keys", "list", "--file", str(path))[1]


def test_wrong_keys_are_refused_in_a_sentence_and_leave_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    assert run("keys", "list", "--file", str(path))[0] == 2
    run("keys", "add", "team", "--file", str(path))
    before = path.read_text()
    code, _, said = run("keys", "add", "team", "--file", str(path))
    assert code == 2 and "already" in said
    code, _, said = run("keys", "add", "a b", "--file", str(path))
    assert code == 2 and "letters" in said
    code, _, said = run("keys", "add", "other", "--file", str(path), "--max-concurrent", "-1")
    assert code == 2 and "`max_concurrent` is negative" in said
    assert path.read_text() == before


def test_the_ledger_is_printed_by_entry_and_in_sums(bus_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fill() -> None:
        async with Bus.open(bus_url) as bus:
            for number in range(3):
                entry = Entry(
                    request_id=f"r{number}",
                    model="m",
                    end="stop",
                    tenant="t" if number else "u",
                    prompt_tokens=7,
                    energy_j=1.25 * number,
                )
                await Ledger(bus.route).write(entry)

    anyio.run(fill)
    code, out, _ = run("ledger", "--tenant", "t", HEADRACE_REDIS_URL=bus_url)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [line["request_id"] for line in lines] == ["r1", "r2"]
    assert [line["energy_j"] for line in lines] == [1.25, 2.5]
    _, out, _ = run("ledger", "--after", lines[0]["id"], HEADRACE_REDIS_URL=bus_url)
    assert [json.loads(line)["request_id"] for line in out.splitlines()] == ["r2"]
    _, out, _ = run("ledger", "--sum", HEADRACE_REDIS_URL=bus_url)
    names, *rows = (line.split() for line in out.splitlines())
    assert names[-3:] == ["completion", "energy", "J"]
    assert rows == [["t", "m", "2", "14", "0", "0", "0", "0", "3.75"], ["u", "m", "1", "7", "0", "0", "0", "0", "0"]]


def test_the_ledger_of_a_laptop_is_read_whether_its_bus_runs_or_not(tmp_path: Path) -> None:
    code, out, said = run("ledger", HEADRACE_STATE_DIR=str(tmp_path))
    assert (code, out) == (0, ""), said
    assert "the ledger is empty" in said


@pytest.mark.parametrize("place", ["banana", "1790000000000-", "(1-0", ""])
def test_a_place_in_the_ledger_that_is_no_id_is_refused_in_a_sentence(place: str, tmp_path: Path) -> None:
    code, out, said = run("ledger", f"--after={place}", HEADRACE_STATE_DIR=str(tmp_path))
    assert (code, out) == (2, "")
    assert f"--after: {place!r} is no id of an entry" in said
