"""The real model that tests run on. It is pulled once if it is missing; HEADRACE_TEST_MODEL names another place."""

from __future__ import annotations

import fcntl
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
    if given:
        return Path(given)
    folder = Path(default_model_dir())
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".tests").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other lane may pull it, too
        return pull(DEFAULT_MODEL, folder)
