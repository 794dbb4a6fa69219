"""The features of pictures: made when a plan first wants them, kept until one lets them go, put where tokens stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import torch
from torch import Tensor

from model_svc.engine.plan import Picture, RunnerInfo, SequenceStep, StepPlan
from model_svc.layers.step import DeepFeatures, StepBatch
from model_svc.models.decoder import Decoder
from model_svc.runner.precision import RunnerConfigError
from model_svc.runner.staging import send
from model_svc.vision.vision import Vision

_KEPT_BYTES = 256 << 20  # some 300 pictures of 1,088 features of SmolVLM's smallest model, 58 of Idefics3's


def with_sight(info: RunnerInfo, model: Decoder) -> RunnerInfo:
    """Return `info` with what the engine must know of pictures. Raises RunnerConfigError where none fits a step."""
    if model.vision is None:
        return info
    # Answers go first, with their guesses: what they leave is there for the first prompt in any step.
    room = info.max_num_batched_tokens - info.max_num_seqs - info.max_drafts
    if model.sees_both_ways and room < model.vision.tile_tokens:
        most = info.max_num_batched_tokens - room + model.vision.tile_tokens
        raise RunnerConfigError(
            f"max_num_batched_tokens must be {most} or more: a step takes this model's pictures whole"
        )
    return msgspec.structs.replace(
        info,
        image_token_id=model.vision.image_token_id,
        max_features=_KEPT_BYTES // _feature_bytes(model, model.vision),
        whole_pictures=model.sees_both_ways,
        feature_pixels=model.vision.feature_pixels if model.pair_axes is not None else 0,
    )


def sight_bytes(model: Decoder) -> int:
    """Return what pictures take beside weights and steps: what is kept of them, and what looking at one takes."""
    if model.vision is None:
        return 0
    kept = max(_KEPT_BYTES, model.vision.most_features * _feature_bytes(model, model.vision))
    return kept + model.vision.workspace_numbers * model.dtype.itemsize


def _feature_bytes(model: Decoder, vision: Vision) -> int:
    return model.config.hidden_size * (1 + vision.num_deep) * model.dtype.itemsize


class Shown:
    """The pictures of one step: `rows` [R] of its tokens take `features` [R, E], and see up to the rows `last` [R].

    `axes` [3, T] are the positions of all its tokens along three axes, where pictures have two dimensions.
    """

    def __init__(self, model: Decoder, sequences: Sequence[SequenceStep], features: Mapping[bytes, Tensor]) -> None:
        self._model = model
        begins = np.cumsum([0, *(item.num_tokens for item in sequences)])
        parts = [(begin, part) for begin, item in zip(begins, sequences, strict=False) for part in item.pictures]
        rows = [np.frombuffer(part.rows, dtype=np.int32) + begin for begin, part in parts]
        self._rows = send(np.concatenate(rows).astype(np.int64), model.device)
        self._last = np.concatenate([np.full(len(row), row[-1]) for row in rows]).astype(np.int64)
        self._axes = _axes(sequences) if model.pair_axes is not None else None
        self._features: Tensor | None = None
        if model.vision is not None:
            shares = zip(parts, rows, strict=True)
            self._features = torch.cat(
                [features[part.name][part.first : part.first + len(row)] for (_, part), row in shares]
            )

    def inputs(self, ids: Tensor) -> Tensor:
        """Return what the model begins with for `ids` [T]: embeddings, and features where pictures stand [T, E].

        A stage behind the first begins with what it takes.
        """
        if self._features is None:
            return self._model.inputs(ids)
        embedded = self._model.embed(ids)
        embedded[self._rows] = self._features[:, : embedded.shape[1]]
        return embedded

    def batch(self, batch: StepBatch) -> StepBatch:
        """Return the step with what its tokens see, where those of a picture see one another, and how they turn.

        What pictures add behind layers comes with it.
        """
        if self._axes is not None:
            batch = self._turned(batch, self._axes)
        width = self._model.config.hidden_size
        if self._features is not None and self._features.shape[1] > width:
            deep = torch.stack(torch.split(self._features[:, width:], width, 1))
            batch = replace(batch, deep=DeepFeatures(self._rows, deep))
        if not self._model.sees_both_ways:
            return batch
        limits = batch.positions.clone()
        limits[self._rows] = batch.positions[send(self._last, limits.device)]
        return replace(batch, limits=limits)

    def _turned(self, batch: StepBatch, axes: np.ndarray) -> StepBatch:
        """Return the step with rotary tables of its own: a row for each token, padding included."""
        own, T = torch.arange(len(batch.positions), device=batch.positions.device), axes.shape[1]
        whole = torch.zeros(3, len(own), dtype=torch.int64, device=own.device)
        whole[:, :T] = send(axes.ravel(), own.device).view(3, T)
        return replace(batch, positions=own, rope=self._model.turned(whole))


def _axes(sequences: Sequence[SequenceStep]) -> np.ndarray:
    """Return the positions of a step's tokens along three axes, int64 [3, T]."""
    parts = []
    for item in sequences:
        if item.rope_axes:
            parts.append(np.frombuffer(item.rope_axes, dtype=np.int32).reshape(3, -1).astype(np.int64))
        else:
            first = item.start + item.rope_shift
            parts.append(np.broadcast_to(np.arange(first, first + item.num_tokens), (3, item.num_tokens)))
    return np.concatenate(parts, 1)


class Sight:
    """What a runner has seen. Of a model that sees nothing, or a stage behind the first, that is nothing."""

    def __init__(self, model: Decoder) -> None:
        self._model = model
        self._features: dict[bytes, Tensor] = {}  # by name, [F, E]

    def look(self, plan: StepPlan) -> None:
        """Bring what is kept to what a plan says."""
        if self._model.vision is None:
            return
        for name in plan.forgotten:
            del self._features[name]
        for picture in plan.pictures:
            self._features[picture.name] = self._model.vision(self._tiles(picture))

    def shown(self, sequences: Sequence[SequenceStep]) -> Shown | None:
        """Return the pictures of a step; None where it has none, as most have not."""
        if not any(item.pictures for item in sequences):
            return None
        return Shown(self._model, sequences, self._features)

    def _tiles(self, picture: Picture) -> Tensor:
        flat = np.frombuffer(picture.tiles, dtype=np.uint8).copy()  # torch takes no memory that it may not write to
        return send(flat, self._model.device).view(picture.num_tiles, picture.height, picture.width, 3)
