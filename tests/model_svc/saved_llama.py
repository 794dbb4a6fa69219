"""A tiny random Llama on disk, for whoever loads models as a replica does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.model_svc.house import EOS, make_model
from tests.model_svc.scripted_runner import Script
from tests.model_svc.tiny import TINY


def save_tiny(path: Path, **changes: Any) -> Path:
    """Write a tiny Llama."""
    torch.manual_seed(5)
    config = transformers.LlamaConfig(**(TINY | {"initializer_range": 0.3} | changes))
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the scripted model has its vocabulary, with a tiny Llama over it."""
    script = Script()
    path = make_model(tmp_path, script)
    save_tiny(path, vocab_size=script.vocab_size, eos_token_id=EOS, max_position_embeddings=1024)
    return tmp_path
