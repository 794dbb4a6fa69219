"""The real model that tests run on. It is pulled once if it is missing; HEADRACE_TEST_MODEL names another place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.catalogue import DEFAULT_MODEL
from headrace.pull import pull
from wire.settings import default_model_dir


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The model directory of SmolLM2-135M-Instruct."""
    given = os.environ.get("HEADRACE_TEST_MODEL")
    return Path(given) if given else pull(DEFAULT_MODEL, Path(default_model_dir()))
