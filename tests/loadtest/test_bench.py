"""`headrace bench` against a real edge."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from loadtest import bench
from tests.ring import Ring
from tests.ring import make_ring as make_ring
from tests.ring import ring as ring
from tests.ring import tiny_model as tiny_model
from tests.script import say

pytestmark = pytest.mark.anyio


async def run(ring: Ring, *arguments: str) -> dict[str, object]:
    options = bench.parser().parse_args(["--url", ring.url, "--warmup", "1", *arguments])
    with anyio.fail_after(60):
        return await bench.run(options)


async def test_a_closed_loop_counts_every_request_and_token(ring: Ring) -> None:
    ring.replica.play(*say("one ", "two ", "three "))
    figures = await run(ring, "--requests", "6", "--concurrency", "3")
    assert (figures["completed"], figures["failed"]) == (6, 0)
    assert figures["total_output_tokens"] == sum(
        len(running.sent[0][n].token_ids) for running in ring.replica.requests[1:] for n in range(len(running.sent[0]))
    )
    assert figures["median_ttft_ms"] > 0  # type: ignore[operator]


async def test_a_base_url_of_openais_clients_will_do_and_its_first_model_that_talks_is_taken(ring: Ring) -> None:
    ring.replica.play(*say("one "))
    options = bench.parser().parse_args(["--url", f"{ring.url}/v1/", "--warmup", "0", "--requests", "1"])
    with anyio.fail_after(60):
        figures = await bench.run(options)
    assert (figures["completed"], figures["url"], figures["model"]) == (1, ring.url, "tiny")


async def test_a_server_that_names_no_model_is_told_with_what_it_said(ring: Ring) -> None:
    options = bench.parser().parse_args(["--url", f"{ring.url}/elsewhere"])
    with pytest.raises(bench.BenchError, match=r"/elsewhere/v1/models names no model that talks \(HTTP 404: .*--model"):
        await bench.run(options)


async def test_an_open_loop_sends_at_its_rate_and_failures_are_counted(ring: Ring) -> None:
    ring.replica.play(*say("one "))
    figures = await run(ring, "--requests", "5", "--rate", "200", "--model", "tiny")
    assert figures["completed"] == 5
    refused = await run(ring, "--requests", "2", "--model", "no-such-model")
    assert (refused["completed"], refused["failed"]) == (0, 2)
    assert "404" in str(refused["errors"])


@pytest.mark.parametrize(
    "wrong",
    ["--concurrency=0", "--requests=0", "--requests=x", "--rate=-1", "--rate=0", "--warmup=-1", "--output-tokens=0",
     "--input-words=9-3", "--input-words=few", "--shared-words=-1", "--goodput=ttft", "--goodput=speed:3",
     "--url=banana"],
)  # fmt: skip
def test_a_load_that_makes_no_sense_is_refused_by_its_option(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["--url", "http://127.0.0.1:9", wrong])
    assert ended.value.code == 2
    assert f"argument {wrong.partition('=')[0]}: " in capsys.readouterr().err


def test_where_no_request_is_answered_there_is_no_table_of_zeros(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--url", "http://127.0.0.1:9", "--model", "m", "--requests", "2", "--warmup", "0"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("headrace bench: no request was answered: ")


def test_a_server_that_is_not_there_is_said_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert bench.main(["--url", "http://127.0.0.1:9", "--json", str(tmp_path / "out.json")]) == 1
    assert "does not answer" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists() or json.loads((tmp_path / "out.json").read_text())
