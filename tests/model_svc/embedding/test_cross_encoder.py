"""Scores are those of transformers' classifiers, pair by pair, whatever else is in the batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import XLMRobertaModel

from model_svc.embedding.cross_encoder import CrossEncoder
from model_svc.embedding.embedder import Embedder
from model_svc.embedding.inputs import Input
from model_svc.weights.errors import CheckpointError
from tests.tiny_reranker import FAMILIES, MAX_LEN, Oracle, write_tiny_reranker
from wire.model_card import ModelCard

PAIRS = [
    ("the sky", "is blue"),
    ("the sky", "the deep sea is blue. the sky is not"),
    ("deep sea " * 3, "s"),
    ("the sky", "is deep"),
    ("is the sea deep", "the"),
]


def scores(path: Path, inputs: list[Input]) -> list[float]:
    found = CrossEncoder(path, max_len=MAX_LEN).embed(inputs)
    return [float(np.frombuffer(score, dtype="<f4")[0]) for score in found]


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_of_a_mixed_batch_are_those_of_transformers_one_by_one(tmp_path: Path, family: str) -> None:
    path = write_tiny_reranker(tmp_path / family, family)
    oracle = Oracle(path)
    found = scores(path, [oracle.input(*pair) for pair in PAIRS])
    wanted = [oracle.score(*pair) for pair in PAIRS]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert max(wanted) - min(wanted) > 0.05  # else all of them would pass for any


@pytest.mark.parametrize("family", FAMILIES)
def test_the_longest_pair_is_as_long_as_positions_go(tmp_path: Path, family: str) -> None:
    path = write_tiny_reranker(tmp_path / family, family)
    assert ModelCard.load(path).max_model_len == MAX_LEN
    oracle = Oracle(path)
    cut: dict[str, Any] = {"truncation": "only_second", "max_length": MAX_LEN}
    encoded = oracle.tokenizer("the", "sea " * MAX_LEN, **cut)
    second = encoded.sequence_ids(0).index(1)
    ids = encoded["input_ids"]
    found = scores(path, [Input(ids[second:], ids[:second])])
    assert len(ids) == MAX_LEN
    np.testing.assert_allclose(found, [oracle.score("the", "sea " * MAX_LEN, **cut)], atol=1e-5)


@pytest.mark.parametrize(
    "said",
    [
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0"}},
    ],
)
def test_makers_may_want_the_logits_themselves(tmp_path: Path, said: dict[str, Any]) -> None:
    path = write_tiny_reranker(tmp_path / "bert", **said)
    oracle = Oracle(path)
    found = scores(path, [oracle.input(*pair) for pair in PAIRS])
    np.testing.assert_allclose(found, [oracle.logit(*pair) for pair in PAIRS], atol=1e-5)


def test_a_model_that_ranks_otherwise_is_refused_by_name(tmp_path: Path) -> None:
    path = write_tiny_reranker(tmp_path / "three", num_labels=3)
    with pytest.raises(CheckpointError, match=r"config\.json.*tells 3 labels apart; a reranker has one"):
        CrossEncoder(path, max_len=MAX_LEN)
    path = write_tiny_reranker(tmp_path / "odd", sbert_ce_default_activation_function="torch.nn.modules.Softplus")
    with pytest.raises(CheckpointError, match=r"Softplus.*not supported"):
        CrossEncoder(path, max_len=MAX_LEN)
    path = write_tiny_reranker(tmp_path / "roberta", "roberta")
    weights = load_file(path / "model.safetensors")
    save_file({**weights, "classifier.extra.weight": torch.zeros(1)}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"1 tensors have no use, 'classifier.extra.weight'"):
        CrossEncoder(path, max_len=MAX_LEN)
    weights.pop("classifier.out_proj.bias")
    save_file(weights, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'classifier.out_proj.bias' is missing"):
        CrossEncoder(path, max_len=MAX_LEN)


def test_an_xlm_roberta_that_embeds_gives_the_vectors_of_transformers(tmp_path: Path) -> None:
    path = write_tiny_reranker(tmp_path / "xlm", "xlm-roberta", embeds=True)
    (path / "modules.json").write_text(json.dumps([{"path": "", "type": "x.Transformer"}]))
    assert (ModelCard.load(path).kind, ModelCard.load(path).max_model_len) == ("embedding", MAX_LEN)
    model = XLMRobertaModel.from_pretrained(path)
    inputs = [[0, 5, 6, 2], [0, *[9] * 20, 2], [0, 2], [0, *[7] * (MAX_LEN - 2), 2]]
    for ids, vector in zip(inputs, Embedder(path, max_len=MAX_LEN).embed(list(map(Input, inputs))), strict=True):
        with torch.inference_mode():
            wanted = model(torch.tensor([ids])).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(np.frombuffer(vector, dtype="<f4"), wanted.numpy(), atol=1e-5)
