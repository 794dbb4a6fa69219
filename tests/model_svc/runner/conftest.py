"""A tiny random Llama for tests of the runner, and the real model for tests of what it says."""

from __future__ import annotations

import pytest
import torch

from model_svc.models.decoder import Decoder
from tests.model_fixture import smollm2_path
from tests.model_svc.tiny import tiny_llama

__all__ = ["smollm2_path"]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model() -> Decoder:
    return tiny_llama()
