"""One house with the real default model for all tests that only talk to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.house import House, headrace_up
from tests.model_fixture import smollm2_path as smollm2_path


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[House]:
    """A running house with SmolLM2."""
    state_dir = tmp_path_factory.mktemp("house")
    with headrace_up(state_dir, f"--model={smollm2_path.name}", f"--model-dir={smollm2_path.parent}") as running:
        yield running
