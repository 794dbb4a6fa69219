"""A tiny random Llama for tests of the runner, and the real model for tests of what it says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from model_svc.models.decoder import Decoder
from tests.model_fixture import smollm2_path
from tests.model_svc.tiny import tiny_llama

__all__ = ["smollm2_path"]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Compute with one thread, in fixtures too: on a busy machine two wait for one another, for minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_model() -> Decoder:
    return tiny_llama()
