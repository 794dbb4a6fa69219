"""A whole house with a gpt-oss of random weights, in MXFP4: it babbles, and clients get sense all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM

from tests.e2e.house import House, headrace_up
from tests.gpt_oss import write_published
from tests.harmony import write_harmony_model
from wire.harmony import TAGS

ASK: dict[str, Any] = {"model": "babbler", "messages": [{"role": "user", "content": "hello"}]}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("weather", "clock")]


def write_babbler(path: Path) -> None:
    """Give a directory with a vocabulary the weights of a model."""
    settings = json.loads((path / "config.json").read_text())
    torch.manual_seed(3)
    config = GptOssConfig(
        vocab_size=settings["vocab_size"], eos_token_id=settings["eos_token_id"], hidden_size=64, intermediate_size=96,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_local_experts=4,
        num_experts_per_tok=2, sliding_window=32, max_position_embeddings=settings["max_position_embeddings"],
        rope_parameters={"rope_type": "default", "rope_theta": 150000.0}, initializer_range=0.3,
    )  # fmt: skip
    write_published(path, GptOssForCausalLM(config))


@pytest.fixture(scope="module")
def babbler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    models: Path = tmp_path_factory.mktemp("models")
    write_babbler(write_harmony_model(models / "babbler", max_model_len=2048))
    environ = {"HEADRACE_NUM_BLOCKS": "256", "HEADRACE_MAX_NUM_SEQS": "4"}
    with headrace_up(
        tmp_path_factory.mktemp("house"), "--model=babbler", f"--model-dir={models}", environ=environ
    ) as up:
        yield up


def asked(house: House, **fields: Any) -> dict[str, Any]:
    with house.client() as client:
        reply = client.post("/v1/chat/completions", json={**ASK, **fields})
    assert reply.status_code == 200, reply.text
    assert not any(tag in reply.text for tag in TAGS)
    found: dict[str, Any] = reply.json()
    return found


def test_formats_and_calls_that_must_come_stand_behind_thoughts_of_the_budget(babbler: House) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}}
    for budget in (0, 7, 40):
        common = {"seed": budget, "thinking_token_budget": budget, "max_tokens": 400}
        formed = asked(babbler, response_format=shape, **common)
        called = asked(babbler, tools=TOOLS, tool_choice="required", **common)
        assert json.loads(formed["choices"][0]["message"]["content"])["city"] in ("Oslo", "Rome")
        (call,) = called["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] in ("weather", "clock")
        assert json.loads(call["function"]["arguments"])["city"] in ("Oslo", "Rome")
        ends = [formed["choices"][0]["finish_reason"], called["choices"][0]["finish_reason"]]
        assert ends == ["stop", "tool_calls"]
        for answer in (formed, called):
            assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= budget


def test_what_it_says_of_itself_shows_no_frame(babbler: House) -> None:
    for fields in ({}, {"tools": TOOLS}, {"reasoning_effort": "none"}, {"reasoning_effort": "low", "tools": TOOLS}):
        for seed in range(2):
            asked(babbler, seed=seed, max_tokens=150, **fields)
