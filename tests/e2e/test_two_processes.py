"""A whole house whose model is on two processes says what one process says, also after one of them was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.house import headrace_up, wait_for
from tests.e2e.test_kernel_forms import NAME, random_weights
from tests.processes import command_of
from tests.tiny_model import write_tiny_model

ENVIRON = {"HEADRACE_DTYPE": "float32", "HEADRACE_NUM_BLOCKS": "64"}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return what names the model."""
    models = tmp_path_factory.mktemp("models")
    random_weights(write_tiny_model(models / NAME, max_model_len=256))
    return (f"--model={NAME}", f"--model-dir={models}")


@pytest.fixture(scope="module")
def alone(arguments: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what one process says."""
    with headrace_up(tmp_path_factory.mktemp("one"), *arguments, environ=ENVIRON) as house:
        return house.answer(NAME, 24)


@pytest.mark.parametrize("way", ["tensor", "pipeline"])
def test_a_model_on_two_processes_says_what_it_says_on_one(
    way: str, arguments: tuple[str, ...], alone: str, tmp_path: Path
) -> None:
    with headrace_up(tmp_path, *arguments, f"--{way}-parallel=2", environ=ENVIRON) as house:
        assert house.answer(NAME, 24) == alone
        (rank,) = (each for each in house.family() if "model_svc.parallel.rank" in command_of(each))
        rank.kill()
        wait_for(lambda: not rank.is_running(), timeout_s=60, what="the rank is gone")
        assert house.answer(NAME, 24) == alone  # of the replica that took its place
