"""Two replicas of a real house: what one has computed the other fetches, and no death on the way costs the answer."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.house import House, headrace_up, wait_for
from tests.processes import command_of, suspend

MODEL = "smollm2-135m-instruct"
PREFACE = "The river rises in the hills and runs past nine mills to the sea. " * 12


# However fast this machine computes, and however slow its sources are.
FETCH = {"HEADRACE_BALANCER_FETCH_SHARE": "1e9", "HEADRACE_FETCH_TIMEOUT_S": "100"}


def ask(house: House, question: str = "Write a long story about the river.", **changes: Any) -> dict[str, Any]:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{question} {PREFACE}"}],
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
        "deterministic": True,
        **changes,
    }
    with house.client() as client:
        reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def replicas(house: House) -> list[psutil.Process]:
    """The model services of a house; each has an engine process."""
    return [one for one in house.family()[1:] if "serve" in command_of(one) and "model" in command_of(one)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[House]:
    """Two replicas that take turns, whatever is cached where."""
    arguments = ("--replicas=2", f"--model-dir={smollm2_path.parent}")
    environ = {"HEADRACE_BALANCER_POLICY": "round_robin", **FETCH}
    with headrace_up(tmp_path_factory.mktemp("pair"), *arguments, environ=environ) as house:
        wait_for(lambda: house.metric("headrace_replicas_ready") >= 2, timeout_s=60, what="two replicas are ready")
        yield house


def test_a_prompt_that_one_replica_knows_is_cached_for_the_other(pair: House) -> None:
    first, second, third = ask(pair), ask(pair), ask(pair)
    assert text(first) == text(second) == text(third)
    bills = [answer["usage"]["headrace"] for answer in (first, second, third)]
    assert bills[0]["cached_tokens"] == 0
    assert bills[1]["cached_tokens"] == bills[1]["fetched_tokens"] > 100
    assert bills[1]["fetch_ms"] > 0
    assert bills[2]["cached_tokens"] == bills[1]["cached_tokens"]
    assert bills[2]["fetched_tokens"] == 0  # back where it was computed
    wait_for(lambda: pair.metric("headrace_replica_fetched_blocks_total") > 0, timeout_s=60, what="it is counted")
    assert pair.metric("headrace_replica_failed_fetches_total") == 0
    wait_for(lambda: len(ledger(pair)) == 3, timeout_s=60, what="what was used is noted, which no answer waits for")
    assert [entry.get("fetched_tokens", 0) for entry in ledger(pair)] == [bill["fetched_tokens"] for bill in bills]


def ledger(house: House) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "headrace", "ledger", f"--state-dir={house.state_dir}"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in printed.splitlines()]


def asks_behind(house: House, question: str, **changes: Any) -> Callable[[], dict[str, Any]]:
    """Ask in a thread; the call that is returned waits for the answer."""
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(ask(house, question, **changes)))
    thread.start()

    def answer() -> dict[str, Any]:
        thread.join(120)
        return found[0]

    return answer


def engine_of(service: psutil.Process) -> psutil.Process:
    return next(child for child in service.children() if "model_svc.engine_process" in command_of(child))


def is_asked_for_blocks(service: psutil.Process) -> bool:
    """Whether another replica has a connection to the side channel."""
    return sum("/kv/" in str(one.laddr) for one in service.net_connections("unix")) > 1


def by_replica(house: House, name: str) -> dict[str, float]:
    """A metric of each replica, by its name (r0, p0)."""
    with house.client() as client:
        lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith(name + "{")]
    return {line.split(f"{MODEL}-")[1].split("-")[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def service_named(house: House, name: str) -> psutil.Process:
    return next(one for one in replicas(house) if f"--replica-name={name}" in command_of(one))


def test_a_source_that_is_killed_in_the_middle_of_a_fetch_costs_no_answer(pair: House) -> None:
    def worked() -> list[str]:
        counts = by_replica(pair, "headrace_replica_generated_tokens_total")
        return [name for name, count in counts.items() if count % 24 == 7]  # all else here is answered in 24 tokens

    expected = text(ask(pair, "Tell me of the mills.", max_tokens=7))
    wait_for(worked, timeout_s=60, what="the replica says that it has worked")
    [name] = worked()
    source = service_named(pair, name)
    suspend(engine_of(source))  # so that the other one waits for its blocks
    answer = asks_behind(pair, "Tell me of the mills.", max_tokens=7)
    wait_for(lambda: is_asked_for_blocks(source), timeout_s=60, what="the source is asked for blocks")
    source.kill()
    told = answer()
    assert text(told) == expected
    assert told["usage"]["headrace"]["fetched_tokens"] == 0
    wait_for(lambda: pair.metric("headrace_replica_failed_fetches_total") == 1, timeout_s=60, what="it is counted")


@pytest.fixture(scope="module")
def disaggregated(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[House]:
    """One replica that computes prompts, one that answers."""
    arguments = ("--replicas=1", "--prefill-replicas=1", f"--model-dir={smollm2_path.parent}")
    with headrace_up(tmp_path_factory.mktemp("disaggregated"), *arguments, environ=FETCH) as house:
        wait_for(lambda: house.metric("headrace_replicas_ready") >= 2, timeout_s=60, what="two replicas are ready")
        yield house


def test_a_prompt_is_computed_by_one_replica_and_answered_by_another_as_by_one(
    disaggregated: House, pair: House
) -> None:
    answer = ask(disaggregated, "Tell me of the hills.")
    assert text(answer) == text(ask(pair, "Tell me of the hills."))
    bill = answer["usage"]["headrace"]
    assert bill["fetched_tokens"] == bill["cached_tokens"] == (bill["prompt_tokens"] - 1) // 16 * 16

    def given() -> float:
        return by_replica(disaggregated, "headrace_replica_given_blocks_total")["p0"]

    wait_for(lambda: given() == bill["fetched_tokens"] // 16, timeout_s=60, what="all that was fetched was given")

    def generated() -> dict[str, float]:
        return by_replica(disaggregated, "headrace_replica_generated_tokens_total")

    wait_for(lambda: generated()["r0"] >= 24, timeout_s=60, what="the other one tells what it made")
    assert generated()["p0"] == 0


def test_a_short_prompt_passes_by_the_prefill_replica(disaggregated: House) -> None:
    given = by_replica(disaggregated, "headrace_replica_given_blocks_total")["p0"]
    assert disaggregated.answer(MODEL, 4)
    assert by_replica(disaggregated, "headrace_replica_given_blocks_total")["p0"] == given


def test_a_prefill_replica_that_is_killed_while_it_computes_costs_no_answer(disaggregated: House) -> None:
    prefill = service_named(disaggregated, "p0")
    suspend(engine_of(prefill))
    answer = asks_behind(disaggregated, "Tell me of nine mills.")
    wait_for(lambda: by_replica_waits(disaggregated), timeout_s=60, what="the job is with the prefill replica")
    prefill.kill()
    killed = text(answer())
    wait_for(lambda: disaggregated.metric("headrace_replicas_ready") >= 2, timeout_s=60, what="it is back")
    assert killed == text(ask(disaggregated, "Tell me of nine mills."))


def by_replica_waits(house: House) -> bool:
    with house.client() as client:
        return "headrace_inflight_requests 1.0" in client.get("/metrics").text


def test_a_decode_replica_that_is_killed_in_mid_answer_leaves_no_seam(disaggregated: House) -> None:
    question = "Tell me of a long way."
    expected = text(ask(disaggregated, question, max_tokens=60))
    decode = service_named(disaggregated, "r0")
    body = {
        "model": MODEL, "messages": [{"role": "user", "content": f"{question} {PREFACE}"}], "max_tokens": 60,
        "temperature": 0, "ignore_eos": True, "deterministic": True, "stream": True,
    }  # fmt: skip
    told = ""
    num_pieces = 0
    with disaggregated.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            told += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
            num_pieces += 1
            if num_pieces == 8:
                decode.kill()
    assert told == expected
