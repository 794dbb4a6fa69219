"""The shape of streamed and whole chat completions, over real HTTP."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import msgspec
import pytest

from tests.gateway.edge.asks import ASK, CHAT, both, opened, refused, streamed, whole
from tests.gateway.edge.sse import read
from tests.ring import Ring
from tests.script import Piece, Script, say, tag, think
from wire.errors import ContextLengthExceededError, InternalError

pytestmark = pytest.mark.anyio


async def test_a_stream_has_a_role_chunk_deltas_a_finish_reason_and_one_done_at_its_end(ring: Ring) -> None:
    ring.replica.play(*say("hello", " world"))
    stream = await streamed(ring)
    assert stream.chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert stream.text() == "hello world"
    assert stream.finish_reason() == "stop"
    assert [event.data for event in stream.events].count("[DONE]") == 1
    assert stream.events[-1].data == "[DONE]"


async def test_all_chunks_of_a_stream_share_id_created_model_and_object(ring: Ring) -> None:
    stream = await streamed(ring, n=2, stream_options={"include_usage": True})
    for name in ("id", "created", "model", "object"):
        assert len({str(chunk[name]) for chunk in stream.chunks}) == 1
    assert stream.chunks[0]["object"] == "chat.completion.chunk"


async def test_each_choice_opens_with_its_role_and_names_it_never_again(ring: Ring) -> None:
    ring.replica.script = Script(choices={0: [], 1: say("one ", "two ")})
    stream = await streamed(ring, n=2)
    for index in (0, 1):
        deltas = [c["delta"] for chunk in stream.chunks for c in chunk["choices"] if c["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert all("role" not in delta for delta in deltas[1:])
    assert (stream.text(0), stream.text(1)) == ("", "one two ")


@pytest.mark.parametrize("options", [None, {"include_usage": False}])
async def test_usage_is_not_sent_unasked(ring: Ring, options: object) -> None:
    stream = await streamed(ring, **({} if options is None else {"stream_options": options}))
    assert all("usage" not in chunk and chunk["choices"] for chunk in stream.chunks)


async def test_the_usage_chunk_comes_last_with_totals_over_all_choices_and_no_choices(ring: Ring) -> None:
    ring.replica.script = Script(choices={0: say("one "), 1: say("one ", "two ", "three ")})
    stream = await streamed(ring, n=2, stream_options={"include_usage": True})
    *others, last = stream.chunks
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in others)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2 + 4
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 6


async def test_stream_options_without_stream_are_refused(ring: Ring) -> None:
    response = await ring.http.post(CHAT, json={**ASK, "stream_options": {"include_usage": True}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream_options"


async def test_usage_is_the_same_streamed_and_whole_also_when_the_prefix_cache_hits(ring: Ring) -> None:
    ask = {"messages": [{"role": "user", "content": "x" * 100}], "n": 2}
    usages = []
    for _ in range(2):
        stream = await streamed(ring, **ask, stream_options={"include_usage": True})
        usages.append(stream.chunks[-1]["usage"])
        usages.append((await whole(ring, **ask))["usage"])
    first, *hits = usages
    assert first["prompt_tokens_details"]["cached_tokens"] in (0, 112, 96)  # the second choice may hit at once
    for hit in hits:
        assert hit["prompt_tokens_details"]["cached_tokens"] > 0
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert hit[name] == first[name]
    assert hits[0]["prompt_tokens_details"] == hits[1]["prompt_tokens_details"]


async def test_the_bill_names_phases_and_tokens(ring: Ring) -> None:
    answer = await whole(ring)
    bill = answer["usage"]["headrace"]
    assert {"queue_ms", "tokenize_ms", "match_ms", "prefill_ms", "decode_ms", "ttft_ms"} <= set(bill)
    assert bill["prefill_ms"] == 2.0 and bill["decode_ms"] == 3.0
    assert bill["ttft_ms"] > 0 and bill["tokenize_ms"] > 0
    assert bill["reasoning"] == {"budget": None, "used": 0, "ended_by": None}


async def test_answers_carry_a_server_timing_header_in_both_modes(ring: Ring) -> None:
    for stream in (True, False):
        response = await ring.http.post(CHAT, json={**ASK, "stream": stream})
        assert "prefill;dur=2.000" in response.headers["server-timing"]


async def test_an_answer_cut_by_the_token_limit_says_length(ring: Ring) -> None:
    ring.replica.play(*say("one ", "two ", "three "))
    for limit in ({"max_tokens": 2}, {"max_completion_tokens": 2}, {"max_tokens": 9, "max_completion_tokens": 2}):
        content, _, reason = await both(ring, **limit)
        assert (content, reason) == ("one two ", "length")


async def test_choices_end_on_their_own_and_the_others_go_on(ring: Ring) -> None:
    go = anyio.Event()
    late = [Piece(b"two ", after=go), *say("three ")]
    ring.replica.script = Script(choices={0: say("one "), 1: late, 2: say("one ", "two ")})
    async with opened(ring, n=3) as response:
        got = b""
        async for part in response.aiter_bytes():
            got += part
            if got.count(b'"finish_reason":"stop"') == 2:
                go.set()
    stream = read(got.decode())
    assert [stream.text(index) for index in range(3)] == ["one ", "two three ", "one two "]
    assert [stream.finish_reason(index) for index in range(3)] == ["stop"] * 3


async def test_every_chunk_of_a_choice_has_the_same_fields(ring: Ring) -> None:
    ring.replica.script = Script(
        choices={0: [*tag("<think>"), *think("thought"), *tag("</think>")], 1: say("one ", "two ")}
    )
    choices = [choice for chunk in (await streamed(ring, n=2)).chunks for choice in chunk["choices"]]
    assert {tuple(choice) for choice in choices} == {("index", "delta", "logprobs", "finish_reason")}
    said = [(choice["index"], choice["delta"]) for choice in choices if choice["delta"]]
    assert (0, {"reasoning_content": "thought"}) in said
    assert [delta["content"] for index, delta in said if index == 1] == ["", "one ", "two "]


async def test_reasoning_is_a_field_of_its_own_and_counted(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden ", "thought"), *tag("</think>"), *say("the answer"))
    content, reasoning, reason = await both(ring)
    assert (content, reasoning, reason) == ("the answer", "hidden thought", "stop")
    usage = (await whole(ring))["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 2
    assert usage["completion_tokens"] == 6
    assert "<think>" not in str((await streamed(ring)).chunks)


async def test_reasoning_cut_by_the_token_limit_is_not_the_answer(ring: Ring) -> None:
    ring.replica.play(*think(*["hidden "] * 30))
    content, reasoning, reason = await both(ring, max_tokens=10)
    assert (content, reasoning, reason) == ("", "hidden " * 10, "length")


async def test_an_error_before_the_first_byte_is_a_real_status_in_both_modes(ring: Ring) -> None:
    ring.replica.script = Script(error=ContextLengthExceededError("prompt 99 of 64 tokens"))
    error = await refused(ring, None)
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "invalid_request_error"


async def test_an_error_after_the_first_token_is_one_error_event_then_done_and_no_finish_reason(ring: Ring) -> None:
    ring.replica.script = Script(say("one ", "two "), error=InternalError("the engine failed"))
    stream = await streamed(ring)
    assert stream.text() == "one two "
    assert stream.finish_reason() is None
    error, done = stream.events[-2:]
    assert error.json()["error"]["code"] == "internal_error"
    assert done.data == "[DONE]"
    assert [event.data for event in stream.events].count("[DONE]") == 1


async def test_an_error_after_the_first_token_fails_a_whole_answer(ring: Ring) -> None:
    ring.replica.script = Script(say("one ", "two "), error=InternalError("the engine failed"))
    response = await ring.http.post(CHAT, json=ASK)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"


async def test_a_replica_that_reports_an_error_as_finish_reason_fails_the_request(ring: Ring) -> None:
    ring.replica.play(*say("one "), finish="error")
    stream = await streamed(ring)
    assert stream.finish_reason() is None
    assert "numbers were not finite" in stream.chunks[-1]["error"]["message"]


async def test_rules_that_leave_no_token_are_the_clients_affair(ring: Ring) -> None:
    ring.replica.play(*say("one "), finish="error")
    ring.replica.transform = lambda chunk: [msgspec.structs.replace(chunk, stuck=chunk.finish_reason is not None)]
    stream = await streamed(ring)
    error = stream.chunks[-1]["error"]
    assert error["code"] == "invalid_request" and "leave no token to say" in error["message"]
    body = {**ASK, "guided_choice": ["one ", "two "], "allowed_token_ids": [ring.replica.token_id(b"one ")]}
    answer = await ring.http.post(CHAT, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "guided_choice")


async def test_a_passed_deadline_ends_the_request_and_cancels_it(
    pass_deadlines: Callable[[], None], ring: Ring
) -> None:
    ring.replica.play(*say("one "), finish=None)
    got = []
    async with opened(ring) as response:
        async for line in response.aiter_lines():
            got.append(line)
            if "one " in line:
                pass_deadlines()
    stream = read("\n".join(got) + "\n")
    assert stream.text() == "one "
    assert stream.chunks[-1]["error"]["code"] == "deadline_exceeded"
    await ring.replica.cancelled()
    await ring.until_idle()


async def test_log_probabilities_come_only_when_asked_for(ring: Ring) -> None:
    ring.replica.play(*say("one ", "two "))
    plain = await whole(ring)
    assert plain["choices"][0]["logprobs"] is None
    asked = await whole(ring, logprobs=True, top_logprobs=2)
    entries = asked["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["one ", "two "]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    stream = await streamed(ring, logprobs=True, top_logprobs=2)
    streamed_entries = [
        entry
        for chunk in stream.chunks
        for choice in chunk["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    assert streamed_entries == entries
