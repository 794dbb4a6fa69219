"""A whole house whose model is on two processes says what one process says, also after one of them was killed."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.house import headrace_up, wait_for
from tests.e2e.test_kernel_forms import NAME, random_weights
from tests.processes import command_of, has_ended
from tests.tiny_model import write_tiny_model

ENVIRON = {"HEADRACE_DTYPE": "float32", "HEADRACE_NUM_BLOCKS": "64"}


def test_a_model_on_two_processes_says_what_it_says_on_one(tmp_path: Path) -> None:
    random_weights(write_tiny_model(tmp_path / "models" / NAME, max_model_len=256))
    arguments = (f"--model={NAME}", f"--model-dir={tmp_path / 'models'}")
    with headrace_up(tmp_path / "one", *arguments, environ=ENVIRON) as house:
        alone = house.answer(NAME, 24)
    with headrace_up(tmp_path / "two", *arguments, "--tensor-parallel=2", environ=ENVIRON) as house:
        assert house.answer(NAME, 24) == alone
        (rank,) = (each for each in house.family() if "model_svc.parallel.rank" in command_of(each))
        rank.kill()
        wait_for(lambda: has_ended(rank), timeout_s=60, what="the rank is gone")
        assert house.answer(NAME, 24) == alone  # of the replica that took its place
