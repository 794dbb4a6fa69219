"""Every field of a chat request is honoured, refused, or named as ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.edge.schema.chat import ChatRequest
from gateway.edge.schema.completions import CompletionRequest
from gateway.edge.schema.messages import MessagesRequest
from gateway.edge.schema.tier import PRIORITIES
from gateway.edge.schema.unknown import REFUSED
from tests.gateway.edge.asks import ASK, CHAT, RESPONSES, refused, still_serves, streamed, whole
from tests.ring import Ring
from tests.script import say, tag, think

pytestmark = pytest.mark.anyio

WARNING = "x-headrace-warning"
DOCS = Path(__file__).resolve().parents[3] / "docs" / "api.md"


async def test_harmless_unknown_fields_are_ignored_and_named_in_a_header(ring: Ring) -> None:
    for stream in (False, True):
        response = await ring.http.post(CHAT, json={**ASK, "stream": stream, "verbosity": "low", "x": {"y": [1]}})
        assert response.status_code == 200
        assert response.headers[WARNING] == "ignored fields: verbosity, x"
    assert WARNING not in (await ring.http.post(CHAT, json=ASK)).headers
    assert WARNING not in (await ring.http.post(CHAT, json={**ASK, "user": "me", "metadata": {"a": "b"}})).headers


async def test_who_wants_a_chat_completion_stored_is_told_that_it_is_not(ring: Ring) -> None:
    for store, said in (
        (True, "ignored fields: x; store: chat completions are not kept, responses are"),
        (False, None),
    ):
        response = await ring.http.post(CHAT, json={**ASK, "store": store, **({"x": 1} if store else {})})
        assert response.headers.get(WARNING) == said


async def test_names_that_cannot_stand_in_a_header_do_not(ring: Ring) -> None:
    odd = {"a\r\nSet-Cookie: x": 1, "é": 1, "": 1, "n" * 500: 1, **{f"f{n}": 1 for n in range(40)}}
    header = (await ring.http.post(CHAT, json={**ASK, **odd})).headers[WARNING]
    assert "Set-Cookie" not in header and "nnn" not in header
    assert header.endswith(" and 28 more")


async def test_unknown_fields_that_would_change_the_answer_are_refused_by_name(ring: Ring) -> None:
    known = set(ChatRequest.__struct_encode_fields__)
    for name in sorted(set(REFUSED) - known):
        unknown: Any = {name: {"some": ["thing"]}}
        error = await refused(ring, name, **unknown)
        assert REFUSED[name].reason in error["message"]
    assert ring.replica.requests == []
    await still_serves(ring)


async def test_their_neutral_values_pass(ring: Ring) -> None:
    neutral: dict[str, Any] = {name: rule.neutral[0] for name, rule in REFUSED.items() if rule.neutral}
    await whole(ring, **neutral)
    await whole(ring, **dict.fromkeys(REFUSED))
    await whole(ring, logprobs=False, top_logprobs=0)
    await refused(ring, "use_beam_search", use_beam_search=0)  # not the value that is neutral


def test_the_table_in_the_docs_is_that_of_the_code() -> None:
    text = DOCS.read_text()
    for name, rule in REFUSED.items():
        assert f"| `{name}` | {rule.reason} |" in text, name
    for tier, priority in PRIORITIES.items():
        assert f"`{tier}` {priority}" in text, tier


@pytest.mark.parametrize("body", [ChatRequest, CompletionRequest, MessagesRequest])
def test_every_field_that_is_honoured_is_in_the_docs(body: Any) -> None:
    text = DOCS.read_text()
    missing = [name for name in body.__struct_encode_fields__ if f"`{name}`" not in text]
    assert not missing, "docs/api.md does not say what they do"


async def test_the_service_tier_is_a_priority(ring: Ring) -> None:
    for tier, priority in PRIORITIES.items():
        answer = await whole(ring, service_tier=tier)
        assert ring.replica.requests[-1].request.priority == priority
        assert answer["service_tier"] == "default"
    await whole(ring, priority=3)
    assert ring.replica.requests[-1].request.priority == 3
    await refused(ring, "service_tier", service_tier="gold")
    await refused(ring, "priority", priority=10**6)


async def test_a_cache_key_is_an_affinity_that_says_nothing_of_the_key(ring: Ring) -> None:
    found = []
    for key in ("team-a", "team-a", "team-b", None):
        await whole(ring, prompt_cache_key=key)
        found.append(ring.replica.requests[-1].job.affinity)
    assert found[0] == found[1] != found[2] and found[3] == ""
    assert "team" not in found[0]
    await refused(ring, "prompt_cache_key", prompt_cache_key="k" * 513)


async def test_an_answer_that_was_begun_is_gone_on_with(ring: Ring) -> None:
    talk = [*ASK["messages"], {"role": "assistant", "content": "It is"}]
    ring.replica.play(*say(*" so"))
    for more in ({}, {"add_generation_prompt": False}):
        answer = await whole(ring, messages=talk, continue_final_message=True, **more)
        assert answer["choices"][0]["message"]["content"] == " so"
        request = ring.replica.requests[-1].request
        assert request.continues and request.effort == "none"
    await refused(ring, "continue_final_message", continue_final_message=True)
    await refused(ring, "add_generation_prompt", add_generation_prompt=False)
    await refused(ring, "add_generation_prompt", messages=talk, continue_final_message=True, add_generation_prompt=True)
    for wrong in (
        {"response_format": {"type": "json_object"}},
        {"reasoning_effort": "high"},
        {"messages": [*ASK["messages"], {"role": "assistant", "content": "It is "}]},
    ):
        fields: dict[str, Any] = {"messages": talk, "continue_final_message": True, **wrong}
        await refused(ring, "messages[1]", **fields)


async def test_responses_have_tier_and_cache_key_too(ring: Ring) -> None:
    body = {"model": "tiny", "input": "hi", "service_tier": "flex", "prompt_cache_key": "team-a", "store": False}
    assert (await ring.http.post(RESPONSES, json=body)).status_code == 200
    running = ring.replica.requests[-1]
    assert running.request.priority == PRIORITIES["flex"] and running.job.affinity


async def test_a_prediction_and_a_limit_of_drafts_reach_the_replica(ring: Ring) -> None:
    parts = [{"type": "text", "text": "as "}, {"type": "text", "text": "before"}]
    for content in ("as before", parts):
        await whole(ring, prediction={"type": "content", "content": content}, num_draft_tokens=3)
        got = ring.replica.requests[-1].request
        assert (got.prediction, got.sampling.num_draft_tokens) == ("as before", 3)
    await whole(ring)
    got = ring.replica.requests[-1].request
    assert (got.prediction, got.sampling.num_draft_tokens) == ("", None)
    for wrong in ({}, {"type": "content"}, {"type": "content", "content": [{"type": "image"}]}, {"type": "x"}):
        await refused(ring, "prediction", prediction=wrong)
    await refused(ring, "num_draft_tokens", num_draft_tokens=-1)


async def test_usage_counts_guesses_that_came_true_and_others(ring: Ring) -> None:
    replace = msgspec.structs.replace
    ring.replica.transform = lambda chunk: [replace(chunk, num_accepted_drafts=3, num_rejected_drafts=1)]
    details = (await whole(ring, n=2))["usage"]["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (6, 2)


async def test_usage_may_come_with_every_chunk(ring: Ring) -> None:
    ring.replica.play(*say("one ", "two "))
    stream = await streamed(ring, n=2, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in stream.chunks if chunk["usage"]]
    assert counts == sorted(counts) and counts[-1] == 6
    assert stream.chunks[-1]["choices"] == []


async def test_prompt_log_probabilities_come_beside_a_whole_answer(ring: Ring) -> None:
    answer = await whole(ring, prompt_logprobs=0)
    rows = answer["prompt_logprobs"]
    assert len(rows) == answer["usage"]["prompt_tokens"] and rows[0] is None
    assert [value["logprob"] for value in rows[2].values()] == [-2.0]
    response = await ring.http.post(CHAT, json={**ASK, "prompt_logprobs": 1, "stream": True})
    assert response.json()["error"]["param"] == "prompt_logprobs"


async def test_reasoning_may_be_left_out_and_is_still_counted(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say("hello"))
    answer = await whole(ring, include_reasoning=False)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 1
    stream = await streamed(ring, include_reasoning=False)
    assert (stream.text(), stream.text(name="reasoning_content")) == ("hello", "")


async def test_too_many_messages_are_refused(ring: Ring) -> None:
    await refused(ring, "messages", messages=[{"role": "user", "content": ""}] * 4097)
    await still_serves(ring)


async def test_a_prompt_over_the_context_is_refused_with_both_numbers(ring: Ring) -> None:
    error = await refused(ring, "messages", messages=[{"role": "user", "content": "x " * 1500}])
    assert error["code"] == "context_length_exceeded"
    # LangChain, LiteLLM, Pydantic AI and Anthropic's clients look for these words, to cut and ask again.
    assert error["message"].startswith("prompt is too long: this model's maximum context length is ")
    long = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "x " * 1500}]}
    response = await ring.http.post("/v1/messages", json=long)
    assert response.json()["error"]["message"].startswith("prompt is too long: ")
    assert "2048" in error["message"] and "3019" in error["message"]


async def test_a_body_nested_too_deep_is_refused_in_fields_we_ignore_too(ring: Ring) -> None:
    for deep in ("[" * 100_000, '{"a":' * 100_000):
        response = await ring.http.post(CHAT, content='{"model":"tiny","messages":[],"x":' + deep)
        assert response.status_code == 400
    await still_serves(ring)
