"""Effort and budget become a plan for the engine, in the model's own way of thinking or by a scaffold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tokenizer_svc.model_directories import CHATML, THINKING, builder, write_chatml
from tokenizer_svc.effort import SHARES, EffortTable, EffortTableError
from tokenizer_svc.prompt import PromptBuilder
from tokenizer_svc.settings import TokenizerSettings
from wire.errors import InvalidRequestError
from wire.messages import ChatMessage, Prompt, ReasoningPlan, Request, SamplingParams, unpack_ids
from wire.settings import SettingsError

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
    share = SHARES[effort]
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
    budget = fields.get("budget_tokens", min(1024, prompt.max_tokens // 4))
    assert prompt.reasoning == ReasoningPlan(
        budget=budget,
        starts_open=True,
        close_ids=tuple(chatml._encoder.encode_template_text("\n</think>\n\n")),
        landing=min(budget // 4, 96),
        landing_ids=tuple(chatml._encoder.encode_template_text("</think>\n\n")),
        closes_at_stop=True,
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


@pytest.mark.parametrize(
    ("tag", "end"), [("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]"), ("<think>", "</think>")]
)
def test_the_template_tells_the_tags_of_thoughts(tmp_path: Path, tag: str, end: str) -> None:
    template = CHATML.replace("<|im_start|>assistant\n' }}{% endif", f"<|im_start|>assistant\n{tag}' }}}}{{% endif")
    found = plan(builder(write_chatml(tmp_path, template=template)))
    assert (found.open_tag, found.close_tag, found.starts_open) == (tag.encode(), end.encode(), True)


def test_the_close_tag_that_is_forced_is_the_models_own_token(thinking: PromptBuilder) -> None:
    close_id = thinking._encoder.encode(thinking._encoder.marks.place("</think>"))
    assert len(close_id) == 1
    assert close_id[0] in plan(thinking).close_ids


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"effort": "huge"}, "reasoning_effort"),
    ({"budget_tokens": -1}, "budget_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_a_wrong_effort_or_budget_is_refused(chatml: PromptBuilder, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        build(chatml, **fields)
    assert caught.value.param == param


def test_a_model_directory_changes_its_own_table(tmp_path: Path) -> None:
    path = write_chatml(tmp_path, max_model_len=131_072)
    (path / "headrace.json").write_text('{"reasoning": {"budgets": {"low": 77}, "bridge": "Enough."}}')
    model = builder(path)
    assert plan(model, effort="low").budget == 77
    assert plan(model, effort="high").budget == TABLE["high"]
    bridged = model._encoder.encode_template_text("\nEnough.\n</think>\n\n")
    assert plan(model, effort="low").close_ids == tuple(bridged)


def test_settings_win_over_the_model_and_those_that_name_it_over_all(tmp_path: Path) -> None:
    (tmp_path / "headrace.json").write_text('{"reasoning": {"budgets": {"low": 77, "high": 78}, "bridge": "Enough."}}')
    table = EffortTable.load(tmp_path, "m", ("m:low=1", "low=2", "high=3", "other:medium=4"), "Stop.")
    assert (table.tokens["low"], table.tokens["high"], table.tokens["medium"]) == (1, 3, TABLE["medium"])
    assert table.bridge == "Stop."


@pytest.mark.parametrize("text", ["low", "low=", "low=-1", "huge=3", "none=1", "m:=4", "=4"])
def test_a_wrong_entry_of_the_table_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(SettingsError, match="reasoning_budgets"):
        TokenizerSettings(reasoning_budgets=(text,))


@pytest.mark.parametrize("text", ["{", '{"reasoning": {"budgets": {"huge": 1}}}', '{"reasoning": {"budget": {}}}'])
def test_a_wrong_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "headrace.json").write_text(text)
    with pytest.raises(EffortTableError, match=r"headrace\.json"):
        EffortTable.load(tmp_path, "m")


def test_no_thinking_is_closed_without_a_bridge(tmp_path: Path) -> None:
    path = write_chatml(tmp_path, template=THINKING)
    (path / "headrace.json").write_text('{"reasoning": {"bridge": "Enough."}}')
    model = builder(path)
    assert plan(model, effort="none").close_ids == tuple(model._encoder.encode_template_text("\n</think>\n\n"))


@pytest.mark.parametrize(("budget", "landing"), [(0, 0), (31, 0), (32, 8), (256, 64), (10_000, 96)])
def test_the_last_stretch_of_a_budget_lands_softly(chatml: PromptBuilder, budget: int, landing: int) -> None:
    found = build(chatml, budget_tokens=budget).reasoning
    assert (found.landing if found else 0) == landing


def test_an_answer_that_was_begun_stands_behind_a_closed_think_block(
    chatml: PromptBuilder, always_open: PromptBuilder
) -> None:
    talk = (ChatMessage(role="user", content="why?"), ChatMessage(role="assistant", content="<|im_end|> So"))
    for model, before in ((chatml, "assistant\n"), (always_open, "<think>\n\n</think>\n\n")):
        prompt = model.build(Request(model="m", messages=talk, effort="none", continues=True))
        assert text_of(model, prompt).endswith(f"{before}<|im_end|> So")
        assert prompt.reasoning is None or not prompt.reasoning.starts_open
        plain = unpack_ids(build(model, effort="none").token_ids)
        added = unpack_ids(prompt.token_ids)[len(plain) :]
        assert model._encoder.encode("<|im_end|> So") == added[-len(model._encoder.encode("<|im_end|> So")) :]
