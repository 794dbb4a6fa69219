"""Vectors are those of transformers' BERT and of the pooling that the model directory asks for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertModel

from model_svc.embedding.embedder import Embedder
from model_svc.embedding.inputs import Input, groups
from model_svc.embedding.pooling import load_pooling
from model_svc.weights.errors import CheckpointError
from tests.tiny_bert import MAX_LEN, write_tiny_bert

INPUTS = [[2, 5, 6, 3], [2, 3], [2, *[9] * 20, 3], [2, 10, 11, 12, 3], [2, 7, 3]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("bert") / "tiny-bert")


def embed(path: Path, inputs: list[list[int]], dimensions: int | None = None) -> np.ndarray:
    vectors = Embedder(path, max_len=MAX_LEN).embed([Input(ids, dimensions=dimensions) for ids in inputs])
    return np.stack([np.frombuffer(vector, dtype="<f4") for vector in vectors])


def states_of(path: Path, ids: list[int]) -> torch.Tensor:
    model = BertModel.from_pretrained(path)
    with torch.inference_mode():
        states: torch.Tensor = model(torch.tensor([ids])).last_hidden_state[0]
        return states


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_of_a_mixed_batch_are_those_of_transformers_one_by_one(
    tmp_path: Path, pooling: str, normalize: bool
) -> None:
    path = write_tiny_bert(tmp_path / "tiny-bert", pooling=pooling, normalize=normalize)
    found = embed(path, INPUTS)
    for ids, vector in zip(INPUTS, found, strict=True):
        states = states_of(path, ids)
        wanted = {"mean": states.mean(0), "cls": states[0], "max": states.amax(0)}[pooling]
        if normalize:
            wanted = wanted / wanted.norm()
        np.testing.assert_allclose(vector, wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize("act", ["relu", "gelu_new"])
def test_other_activations_are_those_of_transformers(tmp_path: Path, act: str) -> None:
    path = write_tiny_bert(tmp_path / "tiny-bert", hidden_act=act)
    wanted = states_of(path, INPUTS[0]).mean(0)
    np.testing.assert_allclose(embed(path, INPUTS[:1])[0], (wanted / wanted.norm()).numpy(), atol=1e-5)


def test_fewer_dimensions_are_the_first_ones_at_length_one(directory: Path) -> None:
    whole, short = embed(directory, INPUTS), embed(directory, INPUTS, 6)
    first = whole[:, :6]
    np.testing.assert_allclose(short, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-6)
    assert embed(directory, INPUTS, 1_000).shape == whole.shape


def test_inputs_of_like_length_are_padded_together_and_others_are_not() -> None:
    lengths = [100, 5, 104, 6, 300, 7]
    found = list(groups(lengths))
    assert sorted(index for group in found for index in group) == list(range(6))
    assert [[lengths[index] for index in group] for group in found] == [[5, 6, 7], [100, 104], [300]]


def test_a_model_directory_that_asks_for_more_is_refused_by_name(directory: Path, tmp_path: Path) -> None:
    path = write_tiny_bert(tmp_path / "tiny-bert")
    (path / "modules.json").write_text(json.dumps([{"path": "", "type": "x.Transformer"}, {"type": "x.Dense"}]))
    with pytest.raises(CheckpointError, match=r"modules\.json.*'Dense'"):
        Embedder(path, max_len=MAX_LEN)
    (path / "modules.json").write_text(json.dumps([{"path": "", "type": "x.Pooling"}]))
    config = (path / "config.json").read_text()
    (path / "config.json").write_text(json.dumps(["pooling_mode_cls_token"]))
    with pytest.raises(CheckpointError, match="needs one of pooling_mode_cls_token"):
        load_pooling(path)
    (path / "config.json").write_text(config)
    weights = load_file(directory / "model.safetensors")
    (path / "modules.json").unlink()
    save_file({**weights, "extra": torch.zeros(1)}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match="1 tensors have no use, 'extra'"):
        Embedder(path, max_len=MAX_LEN)
    weights.pop("encoder.layer.1.output.dense.bias")
    save_file(weights, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'encoder.layer.1.output.dense.bias' is missing"):
        Embedder(path, max_len=MAX_LEN)
