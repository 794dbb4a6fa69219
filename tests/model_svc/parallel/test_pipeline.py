"""A model in two and three stages, each a process, driven as an engine drives any runner, answers as one does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels.native.library import built
from model_svc.engine.plan import Runner
from model_svc.layers.group import Group
from model_svc.parallel.load import load_runner
from model_svc.runner.load import RunnerConfigError
from model_svc.runner.load import load_runner as load_alone
from tests.model_svc.parallel.test_processes import OPTIONS, answers
from tests.model_svc.saved_llama import save_tiny
from tests.model_svc.soon_copied import soon_copied

__all__ = ["soon_copied"]

STAGED = {**OPTIONS, "max_drafts": 0}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), num_hidden_layers=3)


@pytest.fixture(params=["float32 in 3", "int8 in 2"], scope="module")
def form(request: pytest.FixtureRequest) -> tuple[str, int]:
    """Numbers, and in how many stages."""
    dtype, _, stages = request.param.split()
    if dtype == "int8" and not built():
        pytest.skip("native kernels are not built")
    return dtype, int(stages)


@pytest.fixture(scope="module")
def runner(directory: Path, form: tuple[str, int]) -> Iterator[Runner]:
    factory = "tests.model_svc.parallel.test_pipeline:uneven"
    made = load_runner(
        directory,
        pipeline_parallel=form[1],
        factory=factory,
        **{**STAGED, "dtype": form[0]},
        num_blocks=40,
        kv_ram_bytes=1 << 20,
    )
    yield made
    made.close()


def uneven(path: Path, *, group: Group, num_blocks: int, **options: Any) -> Runner:
    """Load a stage, the last of which has the least memory."""
    return load_alone(path, group=group, num_blocks=num_blocks + 8 * (group.stages - 1 - group.stage), **options)


@pytest.fixture(scope="module")
def alone(directory: Path, form: tuple[str, int]) -> dict[str, list[int]]:
    made = load_alone(directory, **{**STAGED, "dtype": form[0]}, num_blocks=40)
    found = answers(made)
    made.close()
    assert all(len(ids) == 16 for ids in found.values())
    return found


def test_stages_answer_as_one_process_does(runner: Runner, alone: dict[str, list[int]]) -> None:
    assert runner.info.num_blocks == 40  # as many as the stage with the least has room for
    assert runner.info.depth == runner.info.stages - 1 > 0
    assert answers(runner) == alone


LOSSES = [
    ("killed", "rank 1 has ended with exit code -9"),
    ("first_fails", "no memory"),
    ("last_fails", "rank 1 has ended with exit code 1"),
]


def lose(directory: Path, device: str, how: str) -> list[str]:
    """Return the last two lines of a process that loses a stage: they come whatever a device waits for."""
    command = [sys.executable, "-m", "tests.model_svc.parallel.lost_stage", str(directory), device, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line.rstrip())
            if said[-1] == "closed":
                break
        process.kill()  # as the service does once the engine has said why it ends
    return said[-2:]


@pytest.mark.parametrize(("how", "says"), LOSSES)
def test_a_process_whose_stage_is_lost_says_so_and_comes_to_an_end(how: str, says: str, directory: Path) -> None:
    assert lose(directory, "cpu", how) == [says, "closed"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pipeline_parallel": 4}, "pipeline_parallel 4 is more than the model's 3 layers"),
        ({"pipeline_parallel": 2, "tensor_parallel": 2}, "pipeline_parallel and tensor_parallel do not go together"),
        ({"pipeline_parallel": 2, "device": "cuda:64"}, "pipeline_parallel 2 needs 2 cards from cuda:64 on"),
        ({"pipeline_parallel": 2, "max_drafts": 8}, "pipeline_parallel and drafts do not go together"),
    ],
)
def test_what_stages_cannot_do_is_refused_by_name(options: dict[str, Any], says: str, directory: Path) -> None:
    with pytest.raises(RunnerConfigError, match=says):
        load_runner(directory, **{**STAGED, **options})
