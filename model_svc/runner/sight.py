"""The features of pictures: made when a plan first wants them, kept until one lets them go, put where tokens stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import torch
from torch import Tensor

from model_svc.engine.plan import Picture, RunnerInfo, SequenceStep, StepPlan
from model_svc.layers.step import StepBatch
from model_svc.models.decoder import Decoder
from model_svc.runner.precision import RunnerConfigError
from model_svc.runner.staging import send

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
        max_features=_KEPT_BYTES // (model.config.hidden_size * model.dtype.itemsize),
        whole_pictures=model.sees_both_ways,
    )


def sight_bytes(model: Decoder) -> int:
    """Return what pictures take beside weights and steps: what is kept of them, and what looking at one takes."""
    if model.vision is None:
        return 0
    return _KEPT_BYTES + model.vision.workspace_numbers * model.dtype.itemsize


class Shown:
    """The pictures of one step: `rows` [R] of its tokens take `features` [R, E], and see up to the rows `last` [R]."""

    def __init__(self, model: Decoder, sequences: Sequence[SequenceStep], features: Mapping[bytes, Tensor]) -> None:
        self._model = model
        begins = np.cumsum([0, *(item.num_tokens for item in sequences)])
        parts = [(begin, part) for begin, item in zip(begins, sequences, strict=False) for part in item.pictures]
        rows = [np.frombuffer(part.rows, dtype=np.int32) + begin for begin, part in parts]
        self._rows = send(np.concatenate(rows).astype(np.int64), model.device)
        self._last = np.concatenate([np.full(len(row), row[-1]) for row in rows]).astype(np.int64)
        self._features: list[Tensor] = []
        if model.vision is not None:
            shares = zip(parts, rows, strict=True)
            self._features = [features[part.name][part.first : part.first + len(row)] for (_, part), row in shares]

    def inputs(self, ids: Tensor) -> Tensor:
        """Return what the model begins with for `ids` [T]: embeddings, and features where pictures stand [T, E].

        A stage behind the first begins with what it takes.
        """
        if not self._features:
            return self._model.inputs(ids)
        embedded = self._model.embed(ids)
        embedded[self._rows] = torch.cat(self._features)
        return embedded

    def batch(self, batch: StepBatch) -> StepBatch:
        """Return the step with what its tokens see, where those of a picture see one another."""
        if not self._model.sees_both_ways:
            return batch
        limits = batch.positions.clone()
        limits[self._rows] = batch.positions[send(self._last, limits.device)]
        return replace(batch, limits=limits)


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
