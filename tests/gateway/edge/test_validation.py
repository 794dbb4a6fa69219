"""Values that can never work are refused with 400 and the field's name, before they reach anybody else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.edge.asks import CHAT, RESPONSES, half_told, refused, still_serves, streamed, whole
from tests.ring import Ring
from tests.script import say
from tests.scripted_replica import ScriptedReplica

pytestmark = pytest.mark.anyio


def sampling(replica: ScriptedReplica) -> Any:
    return replica.requests[-1].request.sampling


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_temperature_that_is_no_number_in_range_is_refused_by_name(ring: Ring, path: str) -> None:
    for value in ("NaN", "Infinity", "-Infinity", "1e999", '"NaN"', "-0.1", "2.1", "true", "[]"):
        asked = '"messages":[{"role":"user","content":"x"}]' if path == CHAT else '"input":"x"'
        body = f'{{"model":"tiny",{asked},"temperature":{value}}}'
        response = await ring.http.post(path, content=body)
        assert response.status_code == 400, value
        assert response.json()["error"]["param"] == "temperature", value
    await still_serves(ring)


async def test_a_running_stream_does_not_notice_what_is_refused_beside_it(ring: Ring) -> None:
    async with half_told(ring) as (lines, go):
        for value in ("NaN", "Infinity", "1e999", '"NaN"', "-0.1", "true"):
            body = f'{{"model":"tiny","messages":[{{"role":"user","content":"x"}}],"temperature":{value}}}'
            assert (await ring.http.post(CHAT, content=body)).status_code == 400
        await refused(ring, "logit_bias", logit_bias={"99999999": 5})
        assert len(ring.replica.requests) == 1
        go.set()
        rest = "".join([line async for line in lines])
    assert "two " in rest and rest.endswith("data: [DONE]")
    await still_serves(ring)


async def test_a_top_k_that_means_nothing_is_refused(ring: Ring) -> None:
    for value in (-2, 0.01, "5", True):
        await refused(ring, "top_k", top_k=value)


async def test_a_top_k_beyond_the_vocabulary_or_below_one_is_no_limit(ring: Ring) -> None:
    for value, expected in ((2147483648, 0), (9999999, 0), (10**30, 0), (0, 0), (-1, 0), (5, 5)):
        await whole(ring, top_k=value)
        assert sampling(ring.replica).top_k == expected


async def test_a_top_p_out_of_range_is_refused_before_any_event(ring: Ring) -> None:
    for value in (0, -0.5, 1.01):
        await refused(ring, "top_p", top_p=value)


WRONG: list[tuple[str, dict[str, Any]]] = [
    *((name, {name: value}) for name, value in (
        ("logit_bias", {"99999999": 5}),
        ("logit_bias", {"-1": 5}),
        ("logit_bias", {"abc": 5}),
        ("logit_bias", {"٣": 5}),
        ("logit_bias", {"1": 101}),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [99999999]),
        ("allowed_token_ids", [-1]),
        ("bad_words", [" "]),
        ("bad_words", ["x" * 2000]),
        ("bad_words", ["x"] * 2000),
        ("stop_token_ids", [99999999]),
        ("stop_token_ids", [-1]),
        ("min_p", 1.5),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0),
        ("seed", 2**63),
        ("n", 0),
        ("n", 1000),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_completion_tokens", 0),
        ("min_tokens", -1),
        ("top_logprobs", 2),
        ("reasoning_effort", "huge"),
        ("thinking_token_budget", -1),
        ("cache_salt", ""),
        ("chat_template", "{{ 1 }}"),
        ("functions", [{"name": "f"}]),
        ("modalities", ["text", "audio"]),
    )),
    *((f"chat_template_kwargs.{name}", {"chat_template_kwargs": {name: "x"}}) for name in (
        "chat_template", "messages", "tools", "add_generation_prompt",
    )),
    ("cache_salt", {"cache_salt": 7}),
    ("response_format.type", {"response_format": {"type": "nope"}}),
    ("tools[0].type", {"tools": [{"type": "web_search"}]}),
    ("tool_choice", {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "any"}),
]  # fmt: skip


async def test_other_wrong_values_are_refused_by_name(ring: Ring) -> None:
    for param, fields in WRONG:
        await refused(ring, param, **fields)
    await still_serves(ring)


async def test_the_vocabulary_size_itself_is_no_token_id(ring: Ring) -> None:
    size = ring.replica.vocabulary.size
    await refused(ring, "logit_bias", logit_bias={str(size): 1})
    await refused(ring, "stop_token_ids", stop_token_ids=[size], min_tokens=2)
    await whole(ring, logit_bias={str(size - 1): 1}, stop_token_ids=[size - 1] * 1000)
    assert sampling(ring.replica).logit_bias == {size - 1: 1.0}
    assert sampling(ring.replica).stop_token_ids == (size - 1,)


USER = {"role": "user", "content": "hi"}
WRONG_MESSAGES: list[tuple[str, object]] = [
    ("messages", []),
    ("messages", "hi"),
    ("messages[0].role", [{"role": "boss", "content": "x"}]),
    ("messages[0].role", [{"content": "x"}]),
    ("messages[0].content", [{"role": "user"}]),
    ("messages[0].content", [{"role": "user", "content": None}]),
    ("messages[0].content", [{"role": "user", "content": 3}]),
    ("messages[0].tool_call_id", [{"role": "tool", "content": "x"}]),
]


async def test_messages_that_are_none_are_refused_by_place(ring: Ring) -> None:
    for param, messages in WRONG_MESSAGES:
        await refused(ring, param, messages=messages)


async def test_a_part_that_is_no_text_is_refused_by_its_place_and_type(ring: Ring) -> None:
    for kind in ("video_url", "input_audio", "file"):
        content = [{"type": "text", "text": "see"}, {"type": kind, kind: {"url": "data:,"}}]
        error = await refused(ring, "messages[1].content[1]", messages=[USER, {"role": "user", "content": content}])
        assert kind in error["message"]


async def test_text_parts_are_joined_and_developer_is_system(ring: Ring) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await whole(ring, messages=[{"role": "developer", "content": "rules"}, {"role": "user", "content": parts}])
    system, user = ring.replica.requests[-1].request.messages
    assert (system.role, user.content) == ("system", "a\nb")


async def test_an_unknown_model_is_not_found(ring: Ring) -> None:
    error = await refused(ring, "model", status=404, model="gpt-9")
    assert error["code"] == "model_not_found"


async def test_a_missing_model_is_named(ring: Ring) -> None:
    response = await ring.http.post(CHAT, json={"messages": [USER]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "model"


async def test_unknown_harmless_fields_are_ignored(ring: Ring) -> None:
    ring.replica.play(*say("one "))
    stream = await streamed(ring, user="me", metadata={"a": "b"}, service_tier="auto", verbosity="low", x={"y": [1]})
    assert stream.text() == "one "


async def test_null_is_the_same_as_absent(ring: Ring) -> None:
    names = ("temperature", "top_p", "top_k", "n", "max_tokens", "stop", "seed", "logit_bias", "tools", "logprobs")
    await whole(ring, **dict.fromkeys(names))
    assert sampling(ring.replica).n == 1


async def test_reasoning_effort_goes_into_the_request(ring: Ring) -> None:
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh"):
        await whole(ring, reasoning_effort=effort)
        assert ring.replica.requests[-1].request.effort == effort


async def test_all_sampling_fields_reach_the_replica(ring: Ring) -> None:
    fields = {"top_p": 0.5, "top_k": 7, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1, "seed": 11}
    fields |= {"repetition_penalty": 1.2, "min_tokens": 1, "temperature": 0.3, "max_tokens": 20}
    await whole(ring, **fields, stop=["zz"], logit_bias={"5": -3}, ignore_eos=True, deterministic=True)
    got = sampling(ring.replica)
    assert {name: getattr(got, name) for name in fields} == fields
    assert (got.stop, got.logit_bias, got.ignore_eos, got.deterministic) == (("zz",), {5: -3.0}, True, True)


async def test_a_temperature_too_small_to_divide_by_is_greedy(ring: Ring) -> None:
    await whole(ring, temperature=1e-30)
    assert sampling(ring.replica).temperature == 0.0


async def test_earlier_tool_calls_of_the_assistant_go_into_the_request(ring: Ring) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    await whole(ring, messages=[*history, {"role": "tool", "tool_call_id": "c1", "content": "7"}, USER])
    messages = ring.replica.requests[-1].request.messages
    assert messages[1].tool_calls[0].name == "f"
    assert messages[2].tool_call_id == "c1"


async def test_a_value_nested_too_deep_is_refused(ring: Ring) -> None:
    deep: Any = {}
    for _ in range(70):
        deep = {"a": deep}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    await refused(ring, "tools[0]", tools=[tool])
