"""Every architecture in 2 and 3 stages computes what it computes whole, with the layers dealt out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from model_svc.layers.group import ALONE, Group
from model_svc.models.load import load_model
from model_svc.weights.errors import CheckpointError
from tests.model_svc.models.test_parity import CASES, oracle_model, prompt
from tests.model_svc.paged import ModelDriver, Tracked
from tests.model_svc.parallel.ranks import Threads, ranks

CPU = torch.device("cpu")


@pytest.fixture(params=[2, 3], scope="module")
def threads(request: pytest.FixtureRequest) -> Iterator[Threads]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with ranks(request.param, staged=True) as made:
        yield made
    torch.set_num_threads(before)


@pytest.fixture(params=sorted(CASES), scope="module")
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    oracle_model(request.param).save_pretrained(path)
    return path


def logits(directory: Path, group: Group) -> tuple[int, torch.Tensor]:
    """Return how many layers a rank has, and what it says of a prompt in chunks and of two sequences in a step."""
    model = load_model(directory, dtype=torch.float32, device=CPU, group=group)
    driver, seq, other = ModelDriver(model), Tracked(1, prompt(37, seed=1)), Tracked(2, prompt(9, seed=2))
    parts = driver.logits((seq, 20))
    for counts in ((13, 5), (1, 1), (1, 3)):
        parts += driver.logits((seq, counts[0]), (other, counts[1]))
    return len(model.kv_shapes()), torch.cat(parts) if parts else torch.empty(0)


def test_stages_compute_what_one_computes(threads: Threads, directory: Path) -> None:
    num_layers, wanted = logits(directory, ALONE)
    found = threads.each(lambda group: logits(directory, group))
    assert sum(layers for layers, _ in found) == num_layers
    assert torch.equal(found[-1][1], wanted)


def test_layers_are_dealt_out_in_order_and_the_first_stages_have_more(threads: Threads) -> None:
    dealt = [list(group.layers(7)) for group in threads.groups]
    assert [*chain.from_iterable(dealt)] == list(range(7))
    assert [len(part) for part in dealt] == ([4, 3] if len(dealt) == 2 else [3, 2, 2])


@pytest.mark.parametrize("name", ["model.layers.0.stray.weight", "model.layers.3.stray.weight", "model.stray.weight"])
def test_a_tensor_that_no_stage_has_use_for_is_refused_by_one(name: str, threads: Threads, tmp_path: Path) -> None:
    oracle_model("llama").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), name: torch.ones(2)}, file, metadata={"format": "pt"})

    def refused(group: Group) -> bool:
        try:
            load_model(tmp_path, dtype=torch.float32, device=CPU, group=group)
        except CheckpointError as error:
            assert name in str(error)
            return True
        return False

    assert any(threads.each(refused))
