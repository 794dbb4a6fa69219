"""A whole house whose every op runs as an interpreted Triton kernel says what one with the torch forms says."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
import transformers

from tests.e2e.house import headrace_up
from tests.tiny_model import write_tiny_model

NAME = "tiny-random"


def random_weights(path: Path) -> None:
    """Turn a directory with a vocabulary into a model: transformers draws and writes the weights."""
    settings = json.loads((path / "config.json").read_text())
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=settings["vocab_size"],
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=settings["max_position_embeddings"],
        eos_token_id=settings.get("eos_token_id"),
        initializer_range=0.3,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(path)


def _answer(state_dir: Path, models: Path, form: str) -> str:
    environ = {"HEADRACE_KERNELS": form, "HEADRACE_NUM_BLOCKS": "64", "HEADRACE_MAX_NUM_SEQS": "2"}
    arguments = (f"--model={NAME}", f"--model-dir={models}")
    with headrace_up(state_dir, *arguments, environ=environ) as house:
        return house.answer(NAME, 3)


def test_every_op_as_an_interpreted_triton_kernel_gives_the_same_answer(tmp_path: Path) -> None:
    models = tmp_path / "models"
    path = write_tiny_model(models / NAME, max_model_len=256)
    random_weights(path)
    assert "TRITON_INTERPRET" not in os.environ or os.environ["TRITON_INTERPRET"] == "1"
    assert _answer(tmp_path / "a", models, "triton") == _answer(tmp_path / "b", models, "reference")
