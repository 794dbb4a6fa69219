"""A safety policy at the edge: what a rule forbids leaves in no mode, and the work for it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.edge.asks import ASK, CHAT, RESPONSES, still_serves, streamed, whole
from tests.ring import MakeRing, Ring
from tests.scripted_replica import Piece, Script, say, tag, think
from wire.messages import unpack_ids

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
    async with make_ring(safety_policy=str(policy), request_timeout_s=10.0) as running:
        yield running


async def test_a_blocked_word_over_two_tokens_never_leaves_and_ends_the_choice(guarded: Ring) -> None:
    guarded.replica.play(*say(*BAD), finish=None)
    stream = await streamed(guarded, stream_options={"include_usage": True})
    assert stream.text() == "one "
    assert stream.finish_reason() == "content_filter"
    assert stream.chunks[-1]["usage"]["completion_tokens"] <= 4
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


async def test_a_redacted_prompt_reaches_the_model_without_the_stretch(guarded: Ring) -> None:
    await whole(guarded, messages=[{"role": "user", "content": "my card is 1234-5678 " + "x" * 1985}], max_tokens=1)
    assert "1234" not in guarded.replica.requests[-1].request.messages[0].content
