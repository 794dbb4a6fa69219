"""A safety policy at the edge: what a rule forbids leaves in no mode, and the work for it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.gateway.edge.asks import ASK, CHAT, RESPONSES, still_serves, streamed, whole
from tests.ring import MakeRing, Ring
from tests.script import Piece, Script, say, tag, think
from wire import topics
from wire.messages import SafetyEvent, unpack_ids

pytestmark = pytest.mark.anyio

POLICY = """
[[rule]]
id = "word"
kind = "terms"
terms = ["zorgblat"]
action = "block"

[[rule]]
id = "number"
kind = "pattern"
pattern = '\\\\d{4}-\\\\d{4}'
action = "redact"
"""
BAD = ("one ", "zorg", "blat", " fine")
NUMBER = say(*[bytes([byte]) for byte in b"call 1234-5678 now"])


@pytest.fixture
async def guarded(make_ring: MakeRing, tmp_path: Path) -> AsyncIterator[Ring]:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.replace("\\\\", "\\"))
    async with make_ring(safety_policy=str(policy), request_timeout_s=60.0) as running:
        yield running


async def test_a_blocked_word_over_two_tokens_never_leaves_and_ends_the_choice(guarded: Ring) -> None:
    guarded.replica.play(*say(*BAD), finish=None)
    stream = await streamed(guarded, stream_options={"include_usage": True})
    assert stream.text() == "one "
    assert stream.finish_reason() == "content_filter"
    assert stream.chunks[-1]["usage"]["completion_tokens"] <= 4
    assert [event.data for event in stream.events[-1:]] == ["[DONE]"]
    answer = await whole(guarded)
    assert answer["choices"][0]["message"]["content"] == "one "
    assert answer["choices"][0]["finish_reason"] == "content_filter"
    assert len(await guarded.replica.cancelled(2)) == 2
    await guarded.until_idle()


async def test_the_other_choice_goes_on(guarded: Ring) -> None:
    guarded.replica.script = Script(choices={0: say(*BAD), 1: say("one ", "two ")})
    stream = await streamed(guarded, n=2)
    assert (stream.text(0), stream.finish_reason(0)) == ("one ", "content_filter")
    assert (stream.text(1), stream.finish_reason(1)) == ("one two ", "stop")


@pytest.mark.parametrize("pieces", [think(*BAD), [*think("hidden "), *tag("</think>"), *say(*BAD)]])
async def test_reasoning_is_covered_too_on_both_endpoints(guarded: Ring, pieces: list[Piece]) -> None:
    guarded.replica.play(*pieces)
    for path, ask in ((CHAT, ASK), (RESPONSES, {"model": "tiny", "input": "x"})):
        for stream in (True, False):
            response = await guarded.http.post(path, json={**ask, "stream": stream})
            assert response.status_code == 200
            assert "blat" not in response.text
            assert "content_filter" in response.text


async def test_a_redacted_stretch_is_replaced_in_both_modes(guarded: Ring) -> None:
    guarded.replica.play(*NUMBER)
    assert (await streamed(guarded)).text() == "call [redacted] now"
    assert (await whole(guarded))["choices"][0]["message"]["content"] == "call [redacted] now"


async def test_what_was_redacted_does_not_come_back_with_the_next_turn(guarded: Ring) -> None:
    guarded.replica.play(*NUMBER)
    first = (await guarded.http.post(RESPONSES, json={"model": "tiny", "input": "x"})).json()
    ask = {"model": "tiny", "input": "more", "previous_response_id": first["id"]}
    assert (await guarded.http.post(RESPONSES, json=ask)).status_code == 200
    second = guarded.replica.requests[-1]
    assert second.prompt is not None
    text = guarded.replica.vocabulary.decode_bytes(unpack_ids(second.prompt.token_ids))
    assert b"[redacted]" in text and b"1234" not in text
    recalled = (await guarded.bus.record(second.job.partition, second.job.request_id, "recalled"))["recalled"]
    assert b"1234" not in guarded.replica.vocabulary.decode_bytes(unpack_ids(recalled.prompt_ids))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_blocked_prompt_is_refused_before_generation_in_one_shape(guarded: Ring, stream: bool) -> None:
    messages = [{"role": "user", "content": "ok"}, {"role": "user", "content": "say Zorgblat"}]
    response = await guarded.http.post(CHAT, json={**ASK, "messages": messages, "stream": stream})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("content_filter", "messages[1]")
    assert "orgblat" not in error["message"]
    assert guarded.replica.requests == []
    await still_serves(guarded)


async def audit(ring: Ring, count: int) -> list[SafetyEvent]:
    """Wait for so many entries of the audit log."""
    found: list[SafetyEvent] = []
    with anyio.fail_after(60):
        async for message in ring.bus.watch(topics.safety_audit()):
            assert isinstance(message, SafetyEvent)
            found.append(message)
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, "/v1/completions", "/v1/messages"])
async def test_a_blocked_word_leaves_on_no_endpoint_and_the_audit_says_blocked(
    guarded: Ring, path: str, stream: bool
) -> None:
    guarded.replica.play(*say(*BAD))
    text = {"role": "user", "content": "x"}
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [text]},
        RESPONSES: {"input": "x"},
        "/v1/completions": {"prompt": "x"},
        "/v1/messages": {"messages": [text], "max_tokens": 20},
    }
    response = await guarded.http.post(path, json={"model": "tiny", "stream": stream, **bodies[path]})
    assert response.status_code == 200, response.text
    assert "one " in response.text and "zorg" not in response.text and "blat" not in response.text
    event = (await audit(guarded, 1))[0]
    assert (event.rule, event.action, event.direction, event.model) == ("word", "block", "answer", "tiny")
    assert (event.start, event.end, len(event.digest)) == (4, 12, 32)


async def test_arguments_of_tools_are_covered_also_in_escapes(guarded: Ring) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    said = '<tool_call>\n{"name": "look", "arguments": {"q": "1234\\u002d5678 z\\u006frgblat"}}\n</tool_call>'
    guarded.replica.play(*say(*(bytes([byte]) for byte in said.encode())))
    for stream in (True, False):
        response = await guarded.http.post(CHAT, json={**ASK, "tools": [tool], "stream": stream})
        assert "look" in response.text and "content_filter" in response.text
        assert "5678" not in response.text and "rgblat" not in response.text
        if not stream:
            held = response.json()["usage"]["headrace"]["safety"]
            assert (held["held_chars"] >= 7, held["redacted"]) == (True, 1)
    events = await audit(guarded, 4)
    assert {(event.direction, event.action) for event in events} == {("tool", "redact"), ("tool", "block")}


async def test_a_blocked_reply_is_stored_up_to_the_block_and_ends_with_a_refusal(guarded: Ring) -> None:
    guarded.replica.play(*say(*BAD))
    first = (await guarded.http.post(RESPONSES, json={"model": "tiny", "input": "x"})).json()
    assert (first["status"], first["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    assert [part["type"] for part in first["output"][-1]["content"]] == ["output_text", "refusal"]
    stored = (await guarded.http.get(f"{RESPONSES}/{first['id']}")).text
    assert "one " in stored and "zorg" not in stored


async def test_every_text_of_a_prompt_is_screened(guarded: Ring) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"q": "zorgblat"}'}}
    calls = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "ok"}]
    ids = [guarded.replica.token_id(bytes([byte])) for byte in b"a zorgblat"]
    number = [guarded.replica.token_id(bytes([byte])) for byte in b"1234-5678"]
    item = {"type": "message", "role": "user", "content": "zorgblat"}
    asks: list[tuple[str, dict[str, Any], str]] = [
        (CHAT, {"messages": [{"role": "user", "content": "x"}, *calls]}, "messages[1]"),
        ("/v1/completions", {"prompt": "zorgblat"}, "prompt"),
        ("/v1/completions", {"prompt": ids}, "prompt"),
        ("/v1/completions", {"prompt": number}, "prompt"),
        (RESPONSES, {"input": "x", "instructions": "zorgblat"}, "instructions"),
        ("/v1/conversations", {"items": [item]}, "items[0]"),
    ]
    for path, body, param in asks:
        model = {} if path == "/v1/conversations" else {"model": "tiny"}
        response = await guarded.http.post(path, json={**model, **body})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "content_filter"), response.text
        assert response.json()["error"]["param"] == param
    assert guarded.replica.requests == []
    assert {event.direction for event in await audit(guarded, len(asks))} == {"prompt"}


async def test_redacted_instructions_are_repeated_and_stored_redacted(guarded: Ring) -> None:
    ask = {"model": "tiny", "input": "x", "instructions": "My number is 1234-5678."}
    first = await guarded.http.post(RESPONSES, json=ask)
    assert first.json()["instructions"] == "My number is [redacted]."
    stored = await guarded.http.get(f"{RESPONSES}/{first.json()['id']}")
    assert stored.json()["instructions"] == "My number is [redacted]."


async def test_tools_in_the_input_are_stored_for_the_next_turn_as_they_were_redacted(guarded: Ring) -> None:
    tool = {"type": "function", "name": "f", "description": "Calls 1234-5678."}
    items = [{"type": "additional_tools", "tools": [tool]}, {"role": "user", "content": "x"}]
    first = (await guarded.http.post(RESPONSES, json={"model": "tiny", "input": items})).json()
    stored = (await guarded.http.get(f"{RESPONSES}/{first['id']}")).json()
    assert stored["additional_tools"] == [{**tool, "description": "Calls [redacted]."}]


async def test_what_is_held_is_told_and_without_rules_nothing_is_said(guarded: Ring, make_ring: MakeRing) -> None:
    guarded.replica.play(*NUMBER)
    told = (await whole(guarded))["usage"]["headrace"]["safety"]
    assert (told["held_chars"], told["redacted"]) == (8, 1)
    assert told["held_ms"] >= told["mean_ms"] > 0
    guarded.replica.play(*say(*[bytes([byte]) for byte in b"far from any"]))
    told = (await whole(guarded))["usage"]["headrace"]["safety"]
    assert told == {"held_chars": 0, "held_ms": 0, "mean_ms": 0, "redacted": 0}
    with anyio.fail_after(60):
        while await guarded.metric("headrace_safety_held_seconds_count") < 2:  # counted when the answer is out
            await anyio.lowlevel.checkpoint()
    async with make_ring() as plain:
        assert "safety" not in (await whole(plain))["usage"]["headrace"]


async def test_a_changed_policy_file_is_at_work_for_the_next_request(make_ring: MakeRing, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[[rule]]\nid = "a"\nkind = "terms"\nterms = ["one"]\naction = "redact"\n')
    async with make_ring(safety_policy=str(file), safety_reload_s=0.01) as running:
        running.replica.play(*say("one ", "two "))
        assert (await streamed(running)).text() == "[redacted] two "
        file.write_text("[[rule]]")
        with anyio.fail_after(60):
            while not await running.metric("headrace_safety_policy_faults"):
                await anyio.sleep(0.01)
        assert (await streamed(running)).text() == "[redacted] two "
        file.write_text('[[rule]]\nid = "a"\nkind = "terms"\nterms = ["two "]\naction = "redact"\n')
        with anyio.fail_after(60):
            while await running.metric("headrace_safety_policy_faults"):
                await anyio.sleep(0.01)
        assert (await streamed(running)).text() == "one [redacted]"


async def test_a_redacted_prompt_reaches_the_model_without_the_stretch(guarded: Ring) -> None:
    await whole(guarded, messages=[{"role": "user", "content": "my card is 1234-5678 " + "x" * 1985}], max_tokens=1)
    assert "1234" not in guarded.replica.requests[-1].request.messages[0].content
