"""The model card, read from directories as they are found in the wild."""

import json
from pathlib import Path
from typing import Any

import pytest

from wire.model_card import ModelCard, ModelCardError

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
    "bos_token_id": 1,
}


def directory(path: Path, **files: Any) -> Path:
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config", {}, "vocab_size is missing"),
        ("config", {"vocab_size": "many"}, "vocab_size"),
        ("config", {"vocab_size": 0}, "vocab_size"),
        ("config", {**CONFIG, "eos_token_id": "</s>"}, "eos_token_id"),
        ("config", {**CONFIG, "max_position_embeddings": -1}, "max_position_embeddings"),
        ("config", {"text_config": {"vocab_size": None}}, "vocab_size is missing"),
        ("config", {**CONFIG, "text_config": [1]}, "text_config"),
        ("config", [1], "object"),
        ("generation_config", {"eos_token_id": [1, None]}, "eos_token_id"),
        ("tokenizer_config", {"chat_template": [{"name": "default"}]}, "chat_template"),
        ("tokenizer_config", {"bos_token": 5}, "bos_token"),
    ],
)
def test_a_malformed_file_is_named_with_its_field(file: str, content: Any, said: str, tmp_path: Path) -> None:
    directory(tmp_path, **{"config": CONFIG, file: content})
    with pytest.raises(ModelCardError, match=rf"{file}\.json: .*{said}"):
        ModelCard.load(tmp_path)


def test_a_template_that_is_no_text_is_named(tmp_path: Path) -> None:
    directory(tmp_path, config=CONFIG)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelCardError, match=r"chat_template\.jinja"):
        ModelCard.load(tmp_path)


def test_generation_config_wins_for_the_end_tokens(tmp_path: Path) -> None:
    card = ModelCard.load(directory(tmp_path, config=CONFIG, generation_config={"eos_token_id": [2, 0]}))
    assert card.eos_token_ids == (2, 0)
    assert (card.architecture, card.vocab_size, card.max_model_len) == ("LlamaForCausalLM", 100, 512)


def test_what_the_makers_advise_for_sampling_is_read_as_far_as_it_makes_sense(tmp_path: Path) -> None:
    advice = {"temperature": 0.6, "top_k": 20, "top_p": 0, "min_p": "much", "do_sample": True}
    card = ModelCard.load(directory(tmp_path, config=CONFIG, generation_config=advice))
    assert card.sampling == {"temperature": 0.6, "top_k": 20}


def test_a_template_file_wins_over_the_one_in_the_tokenizer_config(tmp_path: Path) -> None:
    directory(tmp_path, config=CONFIG, tokenizer_config={"chat_template": "old", "bos_token": {"content": "<s>"}})
    assert ModelCard.load(tmp_path).chat_template == "old"
    assert ModelCard.load(tmp_path).bos_token == "<s>"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "between"}')
    assert ModelCard.load(tmp_path).chat_template == "between"
    (tmp_path / "chat_template.jinja").write_text("new")
    assert ModelCard.load(tmp_path).chat_template == "new"


def test_of_several_templates_the_default_one_is_taken(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert (
        ModelCard.load(directory(tmp_path, config=CONFIG, tokenizer_config={"chat_template": templates})).chat_template
        == "d"
    )


def test_the_limits_of_a_text_model_inside_a_larger_one_are_found(tmp_path: Path) -> None:
    card = ModelCard.load(directory(tmp_path, config={"architectures": ["X"], "text_config": CONFIG}))
    assert (card.vocab_size, card.bos_token_id) == (100, 1)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_missing_or_broken_config_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelCardError, match=r"config\.json"):
        ModelCard.load(tmp_path)
