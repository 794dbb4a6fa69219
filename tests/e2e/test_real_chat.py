"""A real chat through all the desks with the real model, by the client people use."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import jsonschema
import openai
import pytest

from tests.e2e.house import House

MODEL = "smollm2-135m-instruct"


@pytest.fixture
def client(house: House) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def ask(client: openai.OpenAI, text: str, **options: object) -> str:
    reply = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": text}],
        temperature=0,
        max_tokens=24,
        **options,  # type: ignore[call-overload]
    )
    return str(reply.choices[0].message.content)


def test_streamed_and_whole_answers_are_the_same_text(client: openai.OpenAI) -> None:
    whole = ask(client, "Name three colours.")
    pieces = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Name three colours."}],
        temperature=0,
        max_tokens=24,
        stream=True,
    )
    streamed = [piece.choices[0].delta.content or "" for piece in pieces if piece.choices]
    assert "".join(streamed) == whole
    assert sum(map(bool, streamed)) > 3


def test_the_second_turn_computes_only_what_is_new(client: openai.OpenAI) -> None:
    first = client.responses.create(
        model=MODEL, input="My name is Ada. " + "I like rivers and mills. " * 12, temperature=0, max_output_tokens=24
    )
    second = client.responses.create(
        model=MODEL, input="And now?", previous_response_id=first.id, temperature=0, max_output_tokens=8
    )
    assert first.usage is not None
    assert second.usage is not None
    held = first.usage.total_tokens - 1  # the last token's key and value are not computed before the next turn
    assert second.usage.input_tokens_details.cached_tokens >= held - held % 16 - 16


def test_a_conversation_survives_in_the_servers_memory(client: openai.OpenAI) -> None:
    conversation = client.conversations.create()
    client.responses.create(model=MODEL, input="Hello.", conversation=conversation.id, max_output_tokens=8)
    client.responses.create(model=MODEL, input="Again.", conversation=conversation.id, max_output_tokens=8)
    items = client.conversations.items.list(conversation.id, order="asc").data
    assert [item.role for item in items if item.type == "message"] == ["user", "assistant", "user", "assistant"]


def test_mixed_requests_together_answer_as_each_does_alone(house: House, client: openai.OpenAI) -> None:
    import concurrent.futures

    texts = [f"Count from {n} to {n + 5}." for n in range(8)] + ["Write about water. " * (1 + n) for n in range(8)]
    alone = [ask(client, text) for text in texts]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda text: ask(client, text), texts))
    assert together == alone


def test_effort_opens_a_think_block_that_ends_within_its_budget(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is 2 + 3?"}],
        reasoning_effort="low",
        extra_body={"thinking_token_budget": 12, "ignore_eos": True},
        max_tokens=60,
        temperature=0,
    )
    assert reply.usage is not None
    assert reply.usage.completion_tokens_details is not None
    assert 0 < (reply.usage.completion_tokens_details.reasoning_tokens or 0) <= 12
    assert reply.choices[0].message.content
    assert "<think>" not in reply.choices[0].message.content


def test_an_end_inside_the_scaffold_is_followed_by_an_answer(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is 3 + 4? Answer with the number."}],
        reasoning_effort="medium",
        max_tokens=200,
        temperature=0,
    )
    usage = reply.usage.to_dict() if reply.usage else {}
    reasoning = usage["headrace"]["reasoning"]  # type: ignore[index]
    assert 0 < reasoning["used"] <= reasoning["budget"] == 100
    assert reasoning["ended_by"] in ("model", "budget")
    assert reply.choices[0].message.content


def test_thinking_is_ended_from_outside_while_it_goes_on(house: House, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Write a long story about a river."}],
        extra_body={"thinking_token_budget": 6000, "ignore_eos": True},
        max_tokens=6500,
        stop=[" "],  # of the answer: thoughts have no stop strings
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    asked, usage = False, None
    for chunk in stream:
        if not asked and chunk.choices and chunk.choices[0].delta.to_dict().get("reasoning_content"):
            answer = httpx.post(
                f"{house.url}/v1/requests/{chunk.id}/control", json={"action": "end_reasoning"}, trust_env=False
            )
            assert answer.status_code == 202
            asked = True
        usage = chunk.usage or usage
    assert usage is not None
    reasoning = usage.to_dict()["headrace"]["reasoning"]  # type: ignore[index]
    assert reasoning["ended_by"] == "client"
    assert reasoning["used"] < 6000


def test_what_may_be_said_is_what_is_said(client: openai.OpenAI) -> None:
    free = ask(client, "Tell me about the river Seine.")
    word = next(word for word in free.split() if word.isalpha() and len(word) > 2)
    barred = ask(client, "Tell me about the river Seine.", extra_body={"bad_words": [word]})
    assert barred
    assert word not in barred.split()
    few = ask(client, "Say anything.", extra_body={"allowed_token_ids": [28, 30, 33]})
    assert len(few) >= 24
    assert len(set(few)) <= 3


def test_the_prompts_log_probabilities_are_the_same_cached_or_not(client: openai.OpenAI) -> None:
    def scores() -> list[float | None]:
        reply = client.completions.create(
            model=MODEL,
            prompt="The capital of France is the city of Paris. " * 4,
            echo=True,
            logprobs=0,
            max_tokens=1,
            temperature=0,
        )
        logprobs = reply.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.token_logprobs is not None
        return list(logprobs.token_logprobs)

    first, second = scores(), scores()
    assert first[0] is None
    assert len(first) > 40
    assert all(value is not None and value <= 0 for value in first[1:])
    assert second == first  # the second time the prefix cache holds the prompt


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_an_answer_by_schema_is_valid_json(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Describe Ada Lovelace, aged 36, as JSON."}],
        temperature=1.0,
        seed=5,
        n=3,
        max_tokens=120,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
    )
    for choice in reply.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), PERSON)


def test_an_answer_by_choice_is_one_of_them(client: openai.OpenAI) -> None:
    said = ask(
        client, "Is water wet?", extra_body={"structured_outputs": {"choice": ["certainly yes", "certainly no"]}}
    )
    assert said in ("certainly yes", "certainly no")


def test_a_required_tool_is_called_with_arguments_that_fit(client: openai.OpenAI) -> None:
    city = {**PERSON, "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
    reply = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the weather in Rome?"}],
        temperature=0,
        max_tokens=80,
        tools=[{"type": "function", "function": {"name": "weather", "parameters": city}}],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls"
    call = (choice.message.tool_calls or [])[0]
    assert call.type == "function" and call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
