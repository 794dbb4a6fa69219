"""A tiny random Llama for tests of the runner, and the real model for tests of what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from model_svc.models.config import parse_config
from model_svc.models.decoder import Decoder
from model_svc.models.load import build_model
from model_svc.quant.dequantized import Dequantized
from model_svc.weights.random import RandomSource
from tests.model_fixture import smollm2_path

__all__ = ["smollm2_path"]

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 67,  # no multiple of 32: the last word of a bit mask is not full
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model() -> Decoder:
    """A model whose greedy output is not constant."""
    source = RandomSource(tied=False, spread=0.3)
    cpu = torch.device("cpu")
    return build_model(
        parse_config(Path("tiny/config.json"), TINY), source, Dequantized(torch.float32, cpu), device=cpu
    )
