"""Experts that a checkpoint holds in one tensor come one by one, gates apart from what they gate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from model_svc.weights.errors import CheckpointError
from model_svc.weights.open import open_weights
from model_svc.weights.source import Shard

X, E, F = 3, 6, 4
PLACE = "model.layers.0.mlp.experts"
GRANITE = "model.layers.0.block_sparse_moe."


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    return {
        f"{PLACE}.gate_up_proj": torch.randn(X, E, 2 * F),
        f"{PLACE}.gate_up_proj_bias": torch.randn(X, 2 * F),
        f"{PLACE}.down_proj": torch.randn(X, F, E),
        f"{PLACE}.down_proj_bias": torch.randn(X, E),
        "model.norm.weight": torch.randn(E),
    }


def test_each_expert_has_its_matrices_and_biases(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    source = open_weights(tmp_path)
    x = torch.randn(5, E)
    for n in range(X):
        place = f"{PLACE}.{n}"
        both = x @ tensors[f"{PLACE}.gate_up_proj"][n] + tensors[f"{PLACE}.gate_up_proj_bias"][n]
        for half, name in enumerate(("gate_proj", "up_proj")):
            weight, bias = source.get(f"{place}.{name}.weight", (F, E)), source.get(f"{place}.{name}.bias", (F,))
            torch.testing.assert_close(x @ weight.T + bias, both[:, half::2])
        assert torch.equal(source.get(f"{place}.down_proj.weight", (E, F)), tensors[f"{PLACE}.down_proj"][n].T)
        assert torch.equal(source.get(f"{place}.down_proj.bias", (E,)), tensors[f"{PLACE}.down_proj_bias"][n])
    assert source.unused() == {"model.norm.weight"}
    assert torch.equal(source.get("model.norm.weight", (E,)), tensors["model.norm.weight"])
    source.release()


def test_a_rank_has_the_gates_that_gate_what_it_has(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    source = open_weights(tmp_path)
    whole = tensors[f"{PLACE}.gate_up_proj"][1].T
    for rank in range(2):
        for half, name in enumerate(("gate_proj", "up_proj")):
            part = source.get_shard(f"{PLACE}.1.{name}.weight", (F, E), Shard(0, rank, 2))
            assert torch.equal(part, whole[half::2].chunk(2)[rank])  # type: ignore[arg-type]


def test_an_expert_that_is_there_twice_is_refused(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors | {f"{PLACE}.2.up_proj.weight": torch.zeros(F, E)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"2\.up_proj\.weight"):
        open_weights(tmp_path)


@pytest.mark.parametrize("shape", [(), (X,), (X, F), (1 << 40, 0, F)])
def test_tensors_of_other_shapes_are_not_taken_apart(
    tmp_path: Path, tensors: dict[str, torch.Tensor], shape: tuple[int, ...]
) -> None:
    save_file(tensors | {f"{PLACE}.down_proj": torch.empty(shape)}, tmp_path / "model.safetensors")
    source = open_weights(tmp_path)
    assert source.has(f"{PLACE}.down_proj")
    assert not source.has(f"{PLACE}.0.down_proj.weight")


def granite(directory: Path, **changes: torch.Tensor) -> Path:
    tensors = {
        "input_linear.weight": torch.arange(3 * 4 * 5.0).view(3, 4, 5),
        "output_linear.weight": torch.arange(3 * 6 * 2.0).view(3, 6, 2),
        "router.layer.weight": torch.ones(3, 5),
    }
    save_file({GRANITE + name: values for name, values in (tensors | changes).items()}, directory / "model.safetensors")
    return directory


def test_granites_gates_stand_before_what_they_gate_and_ranks_take_their_part(tmp_path: Path) -> None:
    source = open_weights(granite(tmp_path))
    up = source.get(f"{GRANITE}experts.2.up_proj.weight", (2, 5))
    assert torch.equal(up, torch.arange(3 * 4 * 5.0).view(3, 4, 5)[2, 2:])
    part = source.get_shard(f"{GRANITE}experts.1.down_proj.weight", (6, 2), Shard(1, 1, 2))
    assert torch.equal(part, torch.arange(3 * 6 * 2.0).view(3, 6, 2)[1, :, 1:])  # type: ignore[arg-type]
    assert torch.equal(source.get(f"{GRANITE}gate.weight", (3, 5)), torch.ones(3, 5))
    assert len(source.unused()) == 3 * 3 + 1 - 3


def test_an_odd_tensor_stays_what_it_is(tmp_path: Path) -> None:
    source = open_weights(granite(tmp_path, **{"input_linear.weight": torch.ones(3, 5, 5)}))
    assert source.get(f"{GRANITE}input_linear.weight", (3, 5, 5)).sum() == 75


def test_granites_router_has_the_usual_name_and_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'.*gate\.weight' is there, and in '.*router\.layer\.weight' too"):
        open_weights(granite(tmp_path, **{"gate.weight": torch.ones(3, 5)}))
