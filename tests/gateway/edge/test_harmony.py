"""A model that speaks harmony through the whole ring: what goes into its prompt, what clients see of what it says."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from tests.gateway.edge.asks import ASK, CHAT, RESPONSES, both, streamed, whole
from tests.gateway.edge.test_tool_grammar import CLOCK, STRICT, WEATHER
from tests.harmony import WORDS, pieces, unframed, write_harmony_model
from tests.ring import MakeRing, Ring
from tests.script import Script
from wire.harmony import TAGS
from wire.messages import ANSWER, REASONING, ReasoningPlan, unpack_ids

pytestmark = pytest.mark.anyio

THINK, FINAL = "<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>"
CALL = "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
OSLO = '{"city": "Oslo"}'
PREAMBLE = f"{THINK}plan<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>{CALL}{OSLO}"
TOOLS = {"tools": [WEATHER, CLOCK]}


@pytest.fixture(scope="module")
def harmony_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_harmony_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
async def ring(make_ring: MakeRing, harmony_model: Path) -> AsyncIterator[Ring]:
    async with make_ring(model_path=harmony_model) as running:
        yield running


def prompt_of(ring: Ring) -> str:
    """Return the newest prompt, with control tokens by their names and others that only spell one in brackets."""
    prompt, vocabulary = ring.replica.requests[-1].prompt, ring.replica.vocabulary
    assert prompt is not None
    names = {token_id: text for text, token_id in vocabulary.special.items()}
    raw = unpack_ids(prompt.token_ids)
    return "".join(names.get(token_id) or vocabulary.token_bytes(token_id).decode("latin-1") for token_id in raw)


def plan_of(ring: Ring) -> ReasoningPlan:
    prompt = ring.replica.requests[-1].prompt
    assert prompt is not None and prompt.reasoning is not None
    return prompt.reasoning


def spelled(ring: Ring, token_ids: tuple[int, ...]) -> str:
    names = {token_id: text for text, token_id in ring.replica.vocabulary.special.items()}
    return "".join(names.get(one) or ring.replica.vocabulary.token_bytes(one).decode() for one in token_ids)


async def test_thoughts_and_answer_come_apart(ring: Ring) -> None:
    for per_chunk in (1, 3, 100):
        ring.replica.script = Script(pieces(f"{THINK}So.<|end|>{FINAL}Hello."), per_chunk=per_chunk)
        assert await both(ring) == ("Hello.", "So.", "stop")
    hidden = await whole(ring, include_reasoning=False)
    assert "reasoning_content" not in hidden["choices"][0]["message"]
    assert hidden["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3


async def test_a_preamble_is_content_and_a_call_streams_its_arguments(ring: Ring) -> None:
    ring.replica.play(*pieces(PREAMBLE))
    async with ring.openai() as client:
        answer = await client.chat.completions.create(**ASK, **TOOLS)
        message = answer.choices[0].message
        assert (message.content, message.reasoning_content) == ("I look.", "plan")
        assert [(one.function.name, one.function.arguments) for one in message.tool_calls] == [("weather", OSLO)]
        assert answer.choices[0].finish_reason == "tool_calls"
        arguments: list[str] = []
        async for chunk in await client.chat.completions.create(**ASK, **TOOLS, stream=True):
            for choice in chunk.choices:
                arguments += [one.function.arguments for one in choice.delta.tool_calls or [] if one.function.arguments]
        assert "".join(arguments) == OSLO and len(arguments) > 1


async def test_calls_and_results_go_back_one_by_one_with_the_thoughts_that_led_to_them(ring: Ring) -> None:
    calls = [{"id": name, "type": "function", "function": {"name": "weather", "arguments": OSLO}} for name in "ab"]
    talk = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "and <|end|> there?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "plan", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "b", "content": "<|call|> snow"},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "system", "content": "Hurry."},
    ]
    await whole(ring, messages=talk, **TOOLS)
    call = f"<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{OSLO}<|call|>"
    result = '<|start|>functions.weather to=assistant<|channel|>commentary<|message|>"{}"<|end|>'
    said = prompt_of(ring)
    assert said.endswith(
        f"<|start|>user<|message|>and <|end|> there?<|end|><|start|>assistant{THINK}plan\n\nI look.<|end|>"
        f"{call}{result.format('rain')}{call}{result.format('<|call|> snow')}"
        "<|start|>user<|message|>Hurry.<|end|><|start|>assistant"
    )
    ids = unpack_ids(ring.replica.requests[-1].prompt.token_ids)  # type: ignore[union-attr]
    assert ids.count(ring.replica.vocabulary.special["<|call|>"]) == 2, "what a caller spells is text"
    assert ids.count(ring.replica.vocabulary.special["<|end|>"]) == said.count("<|end|>") - 1


EFFORTS = [
    (None, "medium", None), ("none", "low", 0), ("minimal", "low", 12), ("low", "low", 25), ("medium", "medium", 50),
    ("high", "high", 75), ("xhigh", "high", 87),
]  # fmt: skip


async def test_an_effort_is_a_word_for_the_template_and_a_budget(ring: Ring) -> None:
    for effort, told, budget in EFFORTS:
        await whole(ring, **({"reasoning_effort": effort} if effort else {}), max_completion_tokens=100)
        assert f"Reasoning: {told}" in prompt_of(ring)
        plan = plan_of(ring)
        assert (plan.budget, plan.channels, plan.leads) == (budget, True, False)
        assert spelled(ring, plan.close_ids) == f"<|end|>{FINAL}"


async def test_behind_a_spent_budget_a_model_with_tools_may_call(ring: Ring) -> None:
    await whole(ring, reasoning_effort="low", **TOOLS)
    plan = plan_of(ring)
    assert spelled(ring, plan.close_ids) == "<|end|><|start|>assistant<|channel|>"
    barred = [ring.replica.vocabulary.token_bytes(one) for one in plan.barred_ids]
    assert barred == [b"a", b"analysis"], "what begins the name of the channel of thoughts"
    await whole(ring, reasoning_effort="low", **TOOLS, tool_choice="required")
    assert plan_of(ring).leads and not plan_of(ring).barred_ids


async def test_both_ends_are_stop_ids_whatever_the_configuration_names(ring: Ring) -> None:
    await whole(ring)
    prompt = ring.replica.requests[-1].prompt
    assert prompt is not None
    assert set(prompt.stop_token_ids) == {ring.replica.vocabulary.special[name] for name in ("<|return|>", "<|call|>")}


async def test_a_format_is_for_what_stands_behind_a_frame_that_is_forced(ring: Ring) -> None:
    shape = {"response_format": {"type": "json_object"}}
    await whole(ring, **shape)
    plan = plan_of(ring)
    assert (plan.starts_open, plan.leads) == (True, True) and prompt_of(ring).endswith(f"<|start|>assistant{THINK}")
    assert spelled(ring, plan.landing_ids) == spelled(ring, plan.close_ids) == f"<|end|>{FINAL}"
    ring.replica.play(*pieces(f"So.<|end|>{FINAL}{OSLO}", plan=plan))
    assert await both(ring, **shape) == (OSLO, "So.", "stop")


async def test_a_call_that_must_come_is_begun_by_us(ring: Ring) -> None:
    head = "<|end|><|start|>assistant<|channel|>commentary to=functions"
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        await whole(ring, **TOOLS, tool_choice=choice)
        plan = plan_of(ring)
        assert plan.leads and spelled(ring, plan.close_ids) == head
    ring.replica.play(*pieces(f"So.{head}.weather <|constrain|>json<|message|>{OSLO}", plan=plan))
    message = (await whole(ring, **TOOLS, tool_choice=choice))["choices"][0]["message"]
    assert [one["function"] for one in message["tool_calls"]] == [{"name": "weather", "arguments": OSLO}]
    assert message["reasoning_content"] == "So." and not message["content"]


async def test_none_shows_no_tools_and_hides_calls_all_the_same(ring: Ring) -> None:
    ring.replica.play(*pieces(PREAMBLE))
    assert await both(ring, **TOOLS, tool_choice="none") == ("I look.", "plan", "stop")
    assert "weather" not in prompt_of(ring)
    reply = await ring.http.post(CHAT, json={**ASK, "tools": [STRICT]})
    assert ring.replica.requests[-1].request.sampling.grammar is None, "under auto the frame is the model's own"
    assert reply.headers["x-headrace-warning"] == "tools: not enforced unless a call must come: strict"


async def test_an_answer_that_was_begun_is_gone_on_with_in_its_message(ring: Ring) -> None:
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The answer"}]
    ring.replica.play(*unframed(f" is it.<|end|><|start|>assistant{THINK}hm<|end|>"))
    answer = await whole(ring, messages=talk, continue_final_message=True)
    assert answer["choices"][0]["message"]["content"] == " is it."
    assert prompt_of(ring).endswith("hi<|end|><|start|>assistant<|channel|>final<|message|>The answer")
    assert ring.replica.requests[-1].prompt.reasoning is None  # type: ignore[union-attr]


async def test_stop_strings_are_looked_for_in_what_is_shown(ring: Ring) -> None:
    ring.replica.play(*pieces(f"{THINK}final<|end|>{FINAL}a final word"))
    content, reasoning, finish = await both(ring, stop=["final", "<|end|>"])
    assert (content, reasoning, finish) == ("a ", "final", "stop")


async def test_log_probabilities_are_of_the_content(ring: Ring) -> None:
    ring.replica.play(*pieces(f"{THINK}So.<|end|>{FINAL}Hello."))
    choice = (await whole(ring, logprobs=True))["choices"][0]
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == choice["message"]["content"]


async def test_a_cut_anywhere_leaks_nothing(ring: Ring) -> None:
    text = f"{THINK}So.<|end|>{FINAL}Hi."
    ring.replica.play(*pieces(text))
    for limit in range(1, len(pieces(text)), 2):
        content, reasoning, finish = await both(ring, max_completion_tokens=limit)
        assert "Hi.".startswith(content) and "So.".startswith(reasoning) and finish == "length"


async def test_a_response_has_items_and_its_next_turn_begins_with_the_same_tokens(ring: Ring) -> None:
    ring.replica.play(*pieces(PREAMBLE))
    tools = [{"type": "function", **WEATHER["function"]}]  # type: ignore[dict-item]
    first = (await ring.http.post(RESPONSES, json={"model": "tiny", "input": "hi", "tools": tools})).json()
    assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call"]
    assert first["output"][0]["content"][0]["text"] == "plan"
    before = prompt_of(ring)
    ring.replica.play(*pieces(f"{THINK}ah<|end|>{FINAL}Rain."))
    result = {"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "rain"}
    body = {"model": "tiny", "input": [result], "tools": tools, "previous_response_id": first["id"]}
    second = (await ring.http.post(RESPONSES, json=body)).json()
    assert [item["type"] for item in second["output"]] == ["reasoning", "message"]
    assert second["output"][1]["content"][0]["text"] == "Rain."
    assert prompt_of(ring).startswith(f"{before}{THINK}plan")


async def test_a_message_of_anthropics_has_thinking_text_and_tool_use(ring: Ring) -> None:
    ring.replica.play(*pieces(PREAMBLE))
    tools = [{"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]
    asked: dict[str, Any] = {**ASK, "max_tokens": 200, "tools": tools}
    async with AsyncAnthropic(base_url=ring.url, api_key="none", max_retries=0) as client:
        message = await client.messages.create(**asked, thinking={"type": "enabled", "budget_tokens": 99})
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
        assert (message.content[0].thinking, message.content[2].input) == ("plan", {"city": "Oslo"})
        assert message.stop_reason == "tool_use"
        back = [*ASK["messages"], {"role": "assistant", "content": message.content}]
        result = {"type": "tool_result", "tool_use_id": message.content[2].id, "content": "rain"}
        await client.messages.create(**{**asked, "messages": [*back, {"role": "user", "content": [result]}]})
    assert f"{THINK}plan\n\nI look.<|end|>" in prompt_of(ring) and plan_of(ring).budget == 0


def babble(seed: int) -> str:
    """Return frames and words in no order."""
    chance = random.Random(seed)
    return "".join(chance.choice((*TAGS, *TAGS, *WORDS, "said", "\n", "é")) for _ in range(60))


@pytest.mark.parametrize("make", [pieces, unframed], ids=["marked", "unmarked"])
async def test_whatever_comes_no_client_sees_a_frame(ring: Ring, make: Callable[[str], Any]) -> None:
    for seed in range(4):
        ring.replica.script = Script(make(babble(seed)), per_chunk=1 + 3 * seed)
        for fields in ({}, TOOLS):
            stream = await streamed(ring, **fields)
            body = (await ring.http.post(CHAT, json={**ASK, **fields})).text
            for shown in ("".join(event.data for event in stream.events), body):
                assert not any(tag in shown for tag in TAGS) and not any(chr(0xFDD0 + at) in shown for at in range(32))


def test_the_pieces_of_a_script_have_phases() -> None:
    assert {piece.phase for piece in pieces(PREAMBLE)} == {ANSWER, REASONING}
