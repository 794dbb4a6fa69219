"""Which tensors an encoder needs of its checkpoint, by the names of BertModel, and how they get there."""

from __future__ import annotations

import torch
from torch import Tensor

from model_svc.models.config import ModelConfig
from model_svc.weights.errors import CheckpointError
from model_svc.weights.source import WeightSource
from wire.model_card import CROSS_ENCODERS

_FAMILIES = ("bert.", "roberta.")
_UNUSED = ("pooler.", "cls.", "lm_head.", "embeddings.position_ids")

Shapes = dict[str, tuple[int, ...]]


def load(config: ModelConfig, source: WeightSource, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Read all tensors, the head's in float32. Raises CheckpointError, also for tensors that have no use."""
    start = next((one for one in _FAMILIES if source.has(f"{one}embeddings.word_embeddings.weight")), "")
    weights = {name: source.get(start + name, shape).to(device, dtype) for name, shape in _body_shapes(config).items()}
    for name, shape in _head_shapes(config).items():
        place = start + name if name.startswith("pooler.") else name
        weights[name] = source.get(place, shape).to(device, torch.float32)
    for name in source.unused():
        if name.removeprefix(start).startswith(_UNUSED):
            source.ignore(name)
    unused = source.unused()
    if unused:
        raise CheckpointError(config.path.parent, f"{len(unused)} tensors have no use, {min(unused)!r} first")
    return weights


def head_layers(config: ModelConfig) -> tuple[str, str]:
    """Return the names of the two layers that make a logit of the first token's state, in their order."""
    if config.architecture.startswith("Bert"):
        return "pooler.dense", "classifier"
    return "classifier.dense", "classifier.out_proj"


def _head_shapes(config: ModelConfig) -> Shapes:
    if config.architecture not in CROSS_ENCODERS:
        return {}
    labels = config.get("id2label")
    num_labels = len(labels) if isinstance(labels, dict) else config.whole("num_labels", 2)
    if num_labels != 1:
        raise CheckpointError(config.path, f"the model tells {num_labels} labels apart; a reranker has one")
    first, last = head_layers(config)
    return _dense(first, config.hidden_size, config.hidden_size) | _dense(last, 1, config.hidden_size)


def _body_shapes(config: ModelConfig) -> Shapes:
    """Return name and shape of every tensor of the encoder."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: Shapes = {
        "embeddings.word_embeddings.weight": (config.vocab_size, hidden),
        "embeddings.position_embeddings.weight": (config.max_position, hidden),
        "embeddings.token_type_embeddings.weight": (config.whole("type_vocab_size", 2), hidden),
    }
    norms = ["embeddings.LayerNorm"]
    for index in range(config.num_layers):
        at = f"encoder.layer.{index}."
        norms += [f"{at}attention.output.LayerNorm", f"{at}output.LayerNorm"]
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= _dense(f"{at}attention.{name}", hidden, hidden)
        shapes |= _dense(f"{at}intermediate.dense", inner, hidden) | _dense(f"{at}output.dense", hidden, inner)
    for name in norms:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (hidden,)
    return shapes


def _dense(name: str, rows: int, columns: int) -> Shapes:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
