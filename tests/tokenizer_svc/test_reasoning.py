"""Effort and budget become a plan for the engine, in the model's own way of thinking or by a scaffold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tokenizer_svc.model_directories import CHATML, builder, write_chatml
from tokenizer_svc.prompt import PromptBuilder
from tokenizer_svc.reasoning import BUDGETS
from wire.errors import InvalidRequestError
from wire.messages import ChatMessage, Prompt, ReasoningPlan, Request, SamplingParams, unpack_ids

TABLE = {"none": 0, "minimal": 256, "low": 1024, "medium": 4096, "high": 16384, "xhigh": 32768}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> PromptBuilder:
    return builder(write_chatml(tmp_path_factory.mktemp("wide"), max_model_len=131_072))


@pytest.fixture(scope="module")
def always_open(tmp_path_factory: pytest.TempPathFactory) -> PromptBuilder:
    template = CHATML.replace("<|im_start|>assistant\n' }}{% endif", "<|im_start|>assistant\n<think>\n' }}{% endif")
    path: Path = tmp_path_factory.mktemp("open")
    return builder(write_chatml(path, template=template))


def build(model: PromptBuilder, **fields: Any) -> Prompt:
    return model.build(Request(model="m", messages=(ChatMessage(role="user", content="why?"),), **fields))


def plan(model: PromptBuilder, **fields: Any) -> ReasoningPlan:
    found = build(model, **fields).reasoning
    assert found is not None
    return found


def text_of(model: PromptBuilder, prompt: Prompt) -> str:
    return model._vocabulary.decode_bytes(unpack_ids(prompt.token_ids)).decode()


@pytest.mark.parametrize("effort", TABLE)
def test_effort_becomes_a_budget(wide: PromptBuilder, thinking: PromptBuilder, effort: str) -> None:
    if effort != "none":
        assert plan(wide, effort=effort).budget == TABLE[effort]
    share = BUDGETS[effort][1]
    sampling = SamplingParams(max_tokens=100)
    assert plan(thinking, effort=effort, sampling=sampling).budget == int(100 * share)


def test_a_model_without_thinking_thinks_only_when_asked(chatml: PromptBuilder) -> None:
    for fields in ({}, {"effort": "none"}, {"budget_tokens": 0}, {"effort": "none", "budget_tokens": 50}):
        prompt = build(chatml, **fields)
        assert prompt.reasoning is None
        assert "<think>" not in text_of(chatml, prompt)


@pytest.mark.parametrize("fields", [{"effort": "low"}, {"budget_tokens": 64}])
def test_the_scaffold_instructs_and_opens_the_think_block(chatml: PromptBuilder, fields: dict[str, Any]) -> None:
    prompt = build(chatml, **fields)
    text = text_of(chatml, prompt)
    assert text.startswith("system\nBefore you answer, think step by step")
    assert text.endswith("assistant\n<think>\n")
    assert prompt.reasoning == ReasoningPlan(
        budget=fields.get("budget_tokens", min(1024, prompt.max_tokens // 4)),
        starts_open=True,
        close_ids=tuple(chatml._encoder.encode_template_text("\n</think>\n\n")),
    )


def test_an_explicit_budget_wins_over_effort(thinking: PromptBuilder) -> None:
    assert plan(thinking, effort="high", budget_tokens=8).budget == 8
    assert plan(thinking, budget_tokens=100_000).budget == 100_000


def test_native_thinking_is_unlimited_unless_the_request_says_something(thinking: PromptBuilder) -> None:
    assert plan(thinking) == ReasoningPlan(
        budget=None, starts_open=False, close_ids=tuple(thinking._encoder.encode_template_text("\n</think>\n\n"))
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"effort": "none"},
        {"budget_tokens": 0},
        {"template_kwargs": {"enable_thinking": False}},
        {"template_kwargs": {"enable_thinking": False}, "budget_tokens": 50},
        {"template_kwargs": {"enable_thinking": True}, "effort": "none"},
    ],
)
def test_no_thinking_is_no_thinking_however_it_is_said(thinking: PromptBuilder, fields: dict[str, Any]) -> None:
    prompt = build(thinking, **fields)
    assert prompt.reasoning is not None
    assert (prompt.reasoning.budget, prompt.reasoning.starts_open) == (0, False)
    assert text_of(thinking, prompt).endswith("<think>\n\n</think>\n\n")


def test_a_template_that_always_opens_thinking_starts_open(always_open: PromptBuilder) -> None:
    assert (plan(always_open).starts_open, plan(always_open).budget) == (True, None)
    assert (plan(always_open, effort="none").starts_open, plan(always_open, effort="none").budget) == (True, 0)


def test_the_close_tag_that_is_forced_is_the_models_own_token(thinking: PromptBuilder) -> None:
    close_id = thinking._encoder.encode(thinking._encoder.marks.place("</think>"))
    assert len(close_id) == 1
    assert close_id[0] in plan(thinking).close_ids


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"effort": "huge"}, "reasoning_effort"),
    ({"budget_tokens": -1}, "budget_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_a_wrong_wish_is_refused(chatml: PromptBuilder, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        build(chatml, **fields)
    assert caught.value.param == param
