"""Rules that judge windows of text: nothing of a window leaves before its verdict, and without one it stays here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from tests.gateway.edge.asks import ASK, RESPONSES, lines_until, opened, streamed, whole
from tests.gateway.edge.judge_server import JudgeServer, judge_server
from tests.ring import MakeRing, Ring
from tests.script import Piece, Script, say, tag, think
from wire.messages import Request

pytestmark = pytest.mark.anyio

FINE = "This sentence is fine, all of it."
BAD = " But the word zorg stands in this one."
LAST = " And here is one more sentence."


def spoken(text: str) -> list[Piece]:
    """Return a text as one token a byte: the tiny model has all of these."""
    return say(*(bytes([byte]) for byte in text.encode()))


PIECES = spoken(f"{FINE}{BAD}{LAST} ")


@pytest.fixture
async def judge() -> AsyncIterator[JudgeServer]:
    async with judge_server() as running:
        yield running


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    return tmp_path / "policy.toml"


@pytest.fixture(autouse=True)
def judge_token(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("JUDGE_TOKEN", "s3cret")
    yield


@asynccontextmanager
async def guarded(make_ring: MakeRing, file: Path, rule: str, judgements: int = 64) -> AsyncIterator[Ring]:
    """A ring whose policy is one rule; it says PIECES."""
    file.write_text(f'[[rule]]\nid = "judged"\n{rule}\n')
    async with make_ring(safety_policy=str(file), safety_judgements=judgements, request_timeout_s=60.0) as ring:
        ring.replica.play(*PIECES)
        yield ring


def callout(judge: JudgeServer, action: str = "block", more: str = "") -> str:
    limit = "" if "timeout_s" in more else "\ntimeout_s = 60"
    return f'kind = "callout"\nurl = "{judge.url}"\naction = "{action}"\ntoken_env = "JUDGE_TOKEN"\n{more}{limit}'


async def test_a_flagged_window_ends_the_answer_and_what_came_before_has_left(
    make_ring: MakeRing, policy_file: Path, judge: JudgeServer
) -> None:
    async with guarded(make_ring, policy_file, callout(judge, more='directions = ["answer"]')) as ring:
        stream = await streamed(ring, stream_options={"include_usage": True})
        assert (stream.text(), stream.finish_reason()) == (FINE, "content_filter")
        held = stream.chunks[-1]["usage"]["headrace"]["safety"]
        assert held["held_chars"] >= len(FINE)
        assert held["held_ms"] > 0
        answer = await whole(ring)
        assert answer["choices"][0]["message"]["content"] == FINE
        assert answer["choices"][0]["finish_reason"] == "content_filter"
        assert {asked["direction"] for asked in judge.asked} == {"answer"}
        assert set(judge.headers) == {"Bearer s3cret"}
        await ring.until_idle()


async def test_nothing_of_a_window_leaves_before_its_verdict_and_order_is_kept(
    make_ring: MakeRing, policy_file: Path, judge: JudgeServer
) -> None:
    judge.gates = {"fine": anyio.Event()}
    async with guarded(make_ring, policy_file, callout(judge, "redact", 'directions = ["answer"]')) as ring:
        async with opened(ring) as response:
            await judge.until(3)  # the later windows were asked for too, and the last one has its verdict
            judge.gates["fine"].set()
            lines = await lines_until(response, "[DONE]")
        text = "".join(
            choice["delta"].get("content") or ""
            for line in lines
            if line.startswith("data: {")
            for choice in msgspec.json.decode(line[6:])["choices"]
        )
        assert text == f"{FINE}[redacted]{LAST} "
        assert (await whole(ring))["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize(
    ("answer", "on_error", "shown"),
    [
        ((500, b"no"), "", ""),
        ((200, b"not json"), "", ""),
        ((200, b'{"other": 1}'), "", ""),
        ((500, b"no"), 'on_error = "pass"', f"{FINE}{BAD}{LAST} "),
        ((200, b'{"score": 0.4}'), "", f"{FINE}{BAD}{LAST} "),
        ((200, b'{"score": 0.6}'), "", ""),
    ],
)
async def test_without_a_verdict_the_rule_says_what_happens_and_that_is_to_block(
    make_ring: MakeRing,
    policy_file: Path,
    judge: JudgeServer,
    answer: tuple[int, bytes],
    on_error: str,
    shown: str,
) -> None:
    judge.verdict = lambda _: answer
    rule = callout(judge, more=f'directions = ["answer"]\n{on_error}')
    async with guarded(make_ring, policy_file, rule) as ring:
        stream = await streamed(ring)
        assert stream.text() == shown
        assert stream.finish_reason() == ("stop" if shown else "content_filter")
        failures = await ring.metric("headrace_safety_judge_failures_total")
        assert (failures > 0) == (answer[0] == 500 or b"score" not in answer[1])


async def test_a_judge_that_takes_too_long_blocks(make_ring: MakeRing, policy_file: Path, judge: JudgeServer) -> None:
    judge.gates = {"fine": anyio.Event()}
    rule = callout(judge, more='directions = ["answer"]\ntimeout_s = 0.05')
    async with guarded(make_ring, policy_file, rule) as ring:
        stream = await streamed(ring)
        assert (stream.text(), stream.finish_reason()) == ("", "content_filter")
    judge.gates["fine"].set()


async def test_a_window_that_finds_no_place_before_the_judge_blocks(
    make_ring: MakeRing, policy_file: Path, judge: JudgeServer
) -> None:
    judge.gates = {"fine": anyio.Event()}
    rule = callout(judge, more='directions = ["answer"]\ntimeout_s = 60')
    async with guarded(make_ring, policy_file, rule, judgements=1) as ring, opened(ring) as response:
        await judge.until(1)
        with anyio.fail_after(60):
            while await ring.metric("headrace_safety_judge_failures_total") < 1:
                await anyio.sleep(0.005)
        judge.gates["fine"].set()
        lines = await lines_until(response, "[DONE]")
        assert any('"content_filter"' in line for line in lines)
        assert not any("zorg" in line for line in lines)


async def test_the_shipped_classifier_judges_answers_and_prompts(make_ring: MakeRing, policy_file: Path) -> None:
    async with guarded(make_ring, policy_file, 'kind = "classifier"\naction = "block"') as ring:
        ring.replica.play(*spoken("Here is the answer to it. You are a stupid, worthless idiot. Bye."))
        stream = await streamed(ring)
        assert (stream.text(), stream.finish_reason()) == ("Here is the answer to it.", "content_filter")
        messages = [{"role": "user", "content": "Say it: you are a pathetic stupid loser!"}]
        response = await ring.http.post("/v1/chat/completions", json={**ASK, "messages": messages})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "content_filter")
        assert response.json()["error"]["param"] == "messages[0]"


async def test_a_served_chat_model_judges_over_the_bus(make_ring: MakeRing, policy_file: Path) -> None:
    rule = 'kind = "classifier"\nmodel = "tiny"\nquestion = "Is it about zorg?"\naction = "redact"'
    rule += '\ndirections = ["answer"]'

    def script(request: Request) -> Script:
        asked = request.messages[-1].content
        if "<text>" not in asked:
            return Script(PIECES)
        return Script(spoken("Yes." if "zorg" in asked.split("</text>")[0] else "no"))

    async with guarded(make_ring, policy_file, rule) as ring:
        ring.replica.script = script
        assert (await streamed(ring)).text() == f"{FINE}[redacted]{LAST} "
        ring.replica.script = lambda request: Script(
            PIECES if "<text>" not in request.messages[-1].content else spoken("I cannot tell.")
        )
        stream = await streamed(ring)
        assert (stream.text(), stream.finish_reason()) == ("", "content_filter")
        await ring.until_idle()


async def test_reasoning_and_stored_responses_are_judged_too(
    make_ring: MakeRing, policy_file: Path, judge: JudgeServer
) -> None:
    async with guarded(make_ring, policy_file, callout(judge, "redact")) as ring:
        thoughts = think(*(bytes([byte]) for byte in b"I think of zorg now."))
        ring.replica.play(*thoughts, *tag("</think>"), *spoken("Fine."))
        first = (await ring.http.post(RESPONSES, json={"model": "tiny", "input": "x"})).json()
        stored: dict[str, Any] = (await ring.http.get(f"{RESPONSES}/{first['id']}")).json()
        assert "zorg" not in str(first) and "zorg" not in str(stored)
        assert "[redacted]" in str(stored["output"])
        assert {asked["direction"] for asked in judge.asked} == {"prompt", "reasoning", "answer"}
