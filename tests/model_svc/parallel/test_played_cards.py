"""The runner of cards on two ranks, on CPUs: steps in flight, late masks, recordings made together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model_svc.engine.plan import NewSequence, Runner, SequenceStep, StepPlan
from model_svc.layers.group import Group
from model_svc.models.load import load_model
from model_svc.parallel.load import load_runner
from model_svc.parallel.runner import ParallelRunner
from model_svc.runner import recordings
from model_svc.runner.gpu_runner import GpuRunner
from model_svc.runner.load import load_runner as load_alone
from model_svc.runner.load import make_runner
from model_svc.runner.recorded_steps import RecordedSteps
from model_svc.runner.warm_up import warm_up
from tests.model_svc.paged import GREEDY
from tests.model_svc.parallel.test_processes import OPTIONS, answers
from tests.model_svc.runner.test_recordings import Replay
from tests.model_svc.saved_llama import save_tiny
from tests.model_svc.tiny import VOCAB
from wire.messages import pack_ids

_ROOM = 12  # so many captures fit on the second card


def play(patch: pytest.MonkeyPatch, group: Group) -> None:
    """Let a process believe to be on a card that records; the one of rank or stage 1 has little memory."""
    num_captures = 0

    def capture(_pool: object, function: Callable[[], Any]) -> tuple[Replay, Any]:
        nonlocal num_captures
        num_captures += 1
        result = function()
        if (group.rank or group.stage) and num_captures > _ROOM:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Replay(function, result), result

    patch.setattr(recordings, "_capture", capture)
    patch.setattr(torch.cuda, "synchronize", lambda: None)
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))


_patch = pytest.MonkeyPatch()


def on_played_card(path: Path, *, device: str, group: Group, threads: int, dtype: str, **options: Any) -> Runner:
    """Return a rank's runner (the factory that both call)."""
    del threads, dtype
    play(_patch, group)
    model = load_model(Path(path), dtype=torch.float32, device=torch.device(device), group=group)
    made = make_runner(model, packed=True, depth=max(1, group.stages - 1), **options)
    assert isinstance(made, GpuRunner)
    made._recorded = RecordedSteps(made._step, made.info, on_gpu=True, graphs=True)
    with torch.inference_mode():
        made._recorded.record_first()
    warm_up(made)
    return made


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def runner(directory: Path) -> Iterator[ParallelRunner]:
    factory = f"{__name__}:on_played_card"
    made = load_runner(directory, tensor_parallel=2, factory=factory, num_blocks=40, **OPTIONS)
    assert isinstance(made, ParallelRunner)
    yield made
    made.close()
    _patch.undo()


def test_two_cards_answer_as_one_process_and_stop_recording_together(directory: Path, runner: ParallelRunner) -> None:
    alone = load_alone(directory, **OPTIONS, num_blocks=40)
    wanted = answers(alone)
    alone.close()
    assert answers(runner) == wanted
    num_parts = 0
    while runner.use_idle_time():
        num_parts += 1
    assert num_parts
    own = runner._own
    assert isinstance(own, GpuRunner)
    assert len(own._recorded._usual._made) <= _ROOM // 2 + 1  # a forward and a draw each
    assert answers(runner) == wanted


def test_masks_that_follow_a_plan_reach_all_ranks(directory: Path, runner: ParallelRunner) -> None:
    ids = [5, 9, 14, 3]
    new = NewSequence(sampling=GREEDY, seed=0, prompt_ids=pack_ids(ids))
    prompt = SequenceStep(
        slot=0, start=0, num_tokens=4, token_ids=pack_ids(ids), new_blocks=(0, 1), new=new, mask_follows=True
    )
    bits = np.zeros(-(-VOCAB // 32) * 32, dtype=np.uint8)
    bits[60] = 1  # hardly what would be drawn
    mask = np.packbits(bits, bitorder="little").tobytes()
    after = SequenceStep(slot=0, start=4, num_tokens=1, from_device=True, output_index=1)

    def drawn(runner: Runner) -> list[int]:
        handle = runner.submit(StepPlan(step=1, sequences=(prompt,)))
        runner.mask(handle, {0: mask})
        following = runner.submit(StepPlan(step=2, sequences=(after,)))
        found = [runner.collect(each).tokens[0].token_id for each in (handle, following)]
        runner.collect(runner.submit(StepPlan(step=3, sequences=(), freed_slots=(0,))))
        return found

    model = load_model(directory, dtype=torch.float32, device=torch.device("cpu"))
    sizes = {name: value for name, value in OPTIONS.items() if name != "dtype"}
    alone = drawn(make_runner(model, packed=True, depth=1, num_blocks=40, **sizes))
    assert alone[0] == 60
    assert drawn(runner) == alone
