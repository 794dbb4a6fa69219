"""What a client sees of thinking: under which names, how it ended, and what of it is counted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.edge.settings import EdgeSettings
from tests.gateway.edge.asks import CHAT, RESPONSES, both, refused, streamed, whole
from tests.gateway.edge.sse import read
from tests.ring import MakeRing, Ring
from tests.script import Piece, Script, say, tag, think
from wire.messages import PromptNote, TokenChunk
from wire.settings import SettingsError

pytestmark = pytest.mark.anyio


def thought(ended_by: str | None = "budget", **options: Any) -> Script:
    pieces = [*tag("<think>"), *think("hidden ", "thought"), *tag("</think>"), *say("hello")]
    return Script(pieces, reasoning_ended_by=ended_by, **options)


@pytest.mark.parametrize("names", [("reasoning",), ("reasoning_content", "reasoning")])
async def test_reasoning_has_the_names_of_the_setting(make_ring: MakeRing, names: tuple[str, ...]) -> None:
    async with make_ring(reasoning_fields=names) as ring:
        ring.replica.script = thought()
        stream, answer = await streamed(ring), await whole(ring)
    message = answer["choices"][0]["message"]
    assert {name for name in ("reasoning_content", "reasoning") if name in message} == set(names)
    for name in names:
        assert stream.text(name=name) == message[name] == "hidden thought"


def test_unknown_names_of_reasoning_fields_are_refused() -> None:
    for names in ((), ("thoughts",)):
        with pytest.raises(SettingsError, match="reasoning_fields"):
            EdgeSettings(reasoning_fields=names)


@pytest.mark.parametrize("ended_by", ["model", "budget", "client", "stop"])
async def test_the_bill_says_how_much_was_thought_and_what_ended_it(ring: Ring, ended_by: str) -> None:
    ring.replica.script = thought(ended_by)
    usage = (await whole(ring, thinking_token_budget=50))["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 2
    assert usage["headrace"]["reasoning"] == {"budget": 50, "used": 2, "ended_by": ended_by}


@pytest.mark.parametrize("told", [True, False])
async def test_the_budget_on_the_bill_comes_with_the_tokens_or_from_the_record(ring: Ring, told: bool) -> None:
    notes: list[PromptNote | None] = []

    def tell(chunk: TokenChunk) -> list[TokenChunk]:
        sent = chunk if told else msgspec.structs.replace(chunk, prompt_note=None)
        notes.append(sent.prompt_note)
        return [sent]

    ring.replica.script, ring.replica.transform = thought(), tell
    usage = (await whole(ring, thinking_token_budget=50))["usage"]
    assert usage["headrace"]["reasoning"]["budget"] == 50
    assert any(notes) == told


async def test_metrics_tell_thinking_by_effort_and_the_share_that_its_budget_ended(ring: Ring) -> None:
    ring.replica.script = thought("budget")
    await whole(ring, reasoning_effort="low")
    ring.replica.script = thought("model")
    await whole(ring, reasoning_effort="low")
    await whole(ring, thinking_token_budget=9)
    ring.replica.play(*say("hello"))
    await whole(ring)
    await ring.until_idle()
    lines = (await ring.http.get("/metrics")).text.splitlines()
    wanted = {
        'headrace_reasoning_tokens_total{effort="low",model="tiny"} 4.0',
        'headrace_reasoning_tokens_total{effort="tokens",model="tiny"} 2.0',
        'headrace_reasoning_ended_total{effort="low",ended_by="budget",model="tiny"} 1.0',
        'headrace_reasoning_ended_total{effort="low",ended_by="model",model="tiny"} 1.0',
        'headrace_reasoning_ended_total{effort="tokens",ended_by="model",model="tiny"} 1.0',
    }
    assert {
        line
        for line in lines
        if line.startswith("headrace_reasoning_") and not line.endswith(" 0.0") and "_created" not in line
    } == wanted


async def test_budgets_that_mean_nothing_are_refused(ring: Ring) -> None:
    for value in (-1, 2**31, "5", True):
        await refused(ring, "thinking_token_budget", thinking_token_budget=value)
    body = '{"model":"tiny","messages":[{"role":"user","content":"x"}],"thinking_token_budget":NaN}'
    assert (await ring.http.post(CHAT, content=body)).status_code == 400


@pytest.mark.parametrize("fields", [{"reasoning_effort": "none"}, {"thinking_token_budget": 0}])
async def test_no_thinking_stays_no_thinking_beside_a_budget(ring: Ring, fields: dict[str, Any]) -> None:
    await whole(ring, **{"thinking_token_budget": 8, **fields})
    prompt = ring.replica.requests[-1].prompt
    assert prompt is not None
    assert prompt.reasoning is None or prompt.reasoning.budget == 0


@pytest.mark.parametrize(
    ("pieces", "options", "expected"),
    [
        (think("hidden ", "thought", "hidden "), {"max_tokens": 2}, ("", "hidden thought", "length")),
        ([*tag("<think>"), *think("hidden ", "thought")], {}, ("", "hidden thought", "stop")),
        ([*tag("<think>"), *tag("</think>"), *say("hello")], {}, ("hello", "", "stop")),
    ],
    ids=["cut by max_tokens", "ended without closing", "empty"],
)
async def test_thinking_that_ends_oddly_never_becomes_the_answer(
    ring: Ring, pieces: list[Piece], options: dict[str, int], expected: tuple[str, str, str]
) -> None:
    ring.replica.play(*pieces)
    assert await both(ring, **options) == expected


async def test_every_dialect_tells_how_much_was_thought_streamed_and_whole(ring: Ring) -> None:
    ring.replica.script = thought("budget")
    told = {"budget": 50, "used": 2, "ended_by": "budget"}
    message = {"messages": [{"role": "user", "content": "x"}]}
    asks: dict[str, dict[str, Any]] = {
        CHAT: {**message, "thinking_token_budget": 50},
        RESPONSES: {"input": "x", "reasoning": {"max_tokens": 50}},
        "/v1/messages": {**message, "max_tokens": 60, "thinking": {"type": "enabled", "budget_tokens": 50}},
    }
    for path, ask in asks.items():
        whole_answer = await ring.http.post(path, json={"model": "tiny", **ask})
        assert whole_answer.json()["usage"]["headrace"]["reasoning"] == told, whole_answer.text
        options = {"stream_options": {"include_usage": True}} if path == CHAT else {}
        streamed_answer = await ring.http.post(path, json={"model": "tiny", "stream": True, **options, **ask})
        said = [event.json() for event in read(streamed_answer.text).events if '"headrace"' in event.data]
        usage = said[-1].get("usage") or said[-1]["response"]["usage"]
        assert usage["headrace"]["reasoning"] == told
