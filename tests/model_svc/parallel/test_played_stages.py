"""The runner of cards in three stages, on CPUs: answers, chunks, preemption, recordings that differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model_svc.engine.engine import Engine
from model_svc.engine.plan import NewSequence, SequenceStep, StepPlan
from model_svc.parallel.load import load_runner
from model_svc.parallel.pipeline import PipelineRunner
from model_svc.runner.gpu_runner import GpuRunner
from model_svc.runner.load import load_runner as load_alone
from tests.model_svc.paged import GREEDY
from tests.model_svc.parallel import test_processes
from tests.model_svc.parallel.test_pipeline import STAGED
from tests.model_svc.parallel.test_played_cards import _ROOM, _patch
from tests.model_svc.parallel.test_processes import answers
from tests.model_svc.saved_llama import save_tiny
from wire.messages import pack_ids

FACTORY = "tests.model_svc.parallel.test_played_cards:on_played_card"
SIZES: dict[str, Any] = {**STAGED, "max_num_seqs": 8, "max_num_batched_tokens": 32}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), num_hidden_layers=3)


@pytest.fixture(scope="module")
def runner(directory: Path) -> Iterator[PipelineRunner]:
    made = load_runner(directory, pipeline_parallel=3, factory=FACTORY, num_blocks=30, **SIZES)
    assert isinstance(made, PipelineRunner)
    yield made
    made.close()
    _patch.undo()


@pytest.fixture(scope="module")
def alone(directory: Path) -> dict[str, list[int]]:
    made = load_alone(directory, **SIZES, num_blocks=80)
    found = answers(made)
    made.close()
    return found


def test_cards_in_stages_answer_as_one_process_whatever_each_has_recorded(
    runner: PipelineRunner, alone: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: list[Engine] = []

    def kept(*args: Any, **kwargs: Any) -> Engine:
        engines.append(Engine(*args, **kwargs))
        return engines[-1]

    monkeypatch.setattr(test_processes, "Engine", kept)
    assert answers(runner) == alone
    assert engines[0].scheduler.roster.num_preemptions
    own, num_parts_of_others = runner._own, 0
    assert isinstance(own, GpuRunner)
    while runner.use_idle_time():
        num_parts_of_others += own._recorded._usual.all_made and not own._recorded._rare
    assert num_parts_of_others  # the last stage has draws to try, too
    assert len(own._recorded._usual._made) > _ROOM // 2  # the last stage has room for so many
    assert not own._step.logits.numel()
    assert answers(runner) == alone


def test_what_the_prompt_is_worth_comes_from_the_last_stage(runner: PipelineRunner) -> None:
    ids = [5, 9, 14, 3]
    new = NewSequence(sampling=GREEDY, seed=0, prompt_ids=pack_ids(ids))
    prompt = SequenceStep(
        slot=0, start=0, num_tokens=4, token_ids=pack_ids(ids), new_blocks=(0, 1), new=new, targets=pack_ids(ids[1:]),
        num_top=2,
    )  # fmt: skip
    output = runner.collect(runner.submit(StepPlan(step=0, sequences=(prompt,))))
    (told,) = output.targets
    assert [len(entry.top_ids) for entry in told.entries] == [2, 2, 2]
    assert all(entry.logprob < 0 for entry in told.entries)
    runner.collect(runner.submit(StepPlan(step=1, sequences=(), freed_slots=(0,))))
