"""A model that sees on several ranks, or in stages: all take one plan with its pictures and draw what one draws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from model_svc.engine.engine import Engine
from model_svc.engine.plan import StepPlan
from model_svc.layers.group import ALONE, Group
from model_svc.models.load import load_model
from model_svc.runner.load import make_runner
from model_svc.weights.errors import CheckpointError
from tests.model_svc.parallel.ranks import Threads, ranks
from tests.model_svc.vision.seeing import BLOCK, Seeing, save


@pytest.fixture(params=[False, True], ids=["ranks", "stages"])
def threads(request: pytest.FixtureRequest) -> Iterator[Threads]:
    with ranks(2, staged=request.param) as made:
        yield made


def runner_of(directory: Path, group: Group, **options: Any) -> Any:
    model = load_model(directory, dtype=torch.float32, device=torch.device("cpu"), group=group)
    sizes: dict[str, Any] = {"num_blocks": 64, "max_num_seqs": 4, "max_num_batched_tokens": 16, "block_size": BLOCK}
    return make_runner(model, **sizes, depth=0, packed=False, **options)


def plans_of(seeing: Seeing) -> tuple[list[bytes], list[list[int]]]:
    """Return the plans of two prompts with pictures, as they are sent to ranks, and what is drawn in each."""
    runner = runner_of(seeing.directory, ALONE)
    plans, drawn, submit, collect = [], [], runner.submit, runner.collect

    def submitted(plan: StepPlan) -> Any:
        plans.append(msgspec.msgpack.encode(plan))
        return submit(plan)

    def collected(handle: Any) -> Any:
        output = collect(handle)
        drawn.append([token.token_id for token in output.tokens])
        return output

    runner.submit, runner.collect = submitted, collected
    engine = Engine(runner, token_bytes=lambda _: b"x")
    for name, parts in (("one", ([1, 2, 3], 0, [5])), ("two", ([4], 1, [6, 7], 2))):
        engine.add(seeing.request(name, *parts, logprobs=None).request)
    while engine.has_work:
        engine.step()
        engine.events()
    return plans, drawn


@pytest.mark.parametrize("family", ["Idefics3", "Gemma3", "Qwen3VL"])
def test_all_ranks_and_stages_take_one_plan(threads: Threads, tmp_path: Path, family: str) -> None:
    seeing = save(tmp_path, family)
    plans, wanted = plans_of(seeing)
    assert sum(map(len, wanted)) == 10

    def play(group: Group) -> list[list[int]]:
        runner = runner_of(seeing.directory, group)
        assert (runner.info.image_token_id >= 0) == group.is_first
        outputs = []
        for plan in plans:
            output = runner.collect(runner.submit(msgspec.msgpack.decode(plan, type=StepPlan)))
            outputs.append([token.token_id for token in output.tokens])
        return outputs

    found = threads.each(play)
    assert found[-1] == wanted
    if threads.groups[0].is_last:
        assert found[0] == wanted


def test_a_first_stage_with_fewer_layers_than_pictures_add_to_is_refused(tmp_path: Path) -> None:
    seeing = save(tmp_path, "Qwen3VL", num_hidden_layers=2)
    with ranks(2, staged=True) as threads, pytest.raises(CheckpointError, match="leaves the first stage 1"):
        runner_of(seeing.directory, threads.groups[0])
