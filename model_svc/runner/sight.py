"""The features of pictures: made when a plan first wants them, kept until one lets them go, put where tokens stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
import torch
from torch import Tensor

from model_svc.engine.plan import Picture, RunnerInfo, SequenceStep, StepPlan
from model_svc.models.decoder import Decoder
from model_svc.runner.staging import send

_KEPT_BYTES = 256 << 20  # some 300 pictures of 1,088 features of SmolVLM's smallest model, 58 of Idefics3's


def with_sight(info: RunnerInfo, model: Decoder) -> RunnerInfo:
    """Return `info` with what the engine must know of pictures."""
    if model.vision is None:
        return info
    most = _KEPT_BYTES // (model.config.hidden_size * model.dtype.itemsize)
    return msgspec.structs.replace(info, image_token_id=model.vision.image_token_id, max_features=most)


def sight_bytes(model: Decoder) -> int:
    """Return what pictures take beside weights and steps: what is kept of them, and what looking at one takes."""
    if model.vision is None:
        return 0
    return _KEPT_BYTES + model.vision.workspace_numbers * model.dtype.itemsize


Begin = Callable[[Tensor], Tensor]  # ids [T] -> what a model begins with: the ids, or embeddings [T, E]


class Sight:
    """Of a model that sees nothing, or a stage behind the first, it does nothing."""

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

    def inputs(self, ids: Tensor, sequences: Sequence[SequenceStep]) -> Tensor:
        """Return what the model begins with for `ids` [T]."""
        begin = self.begin(sequences)
        return self._model.inputs(ids) if begin is None else begin(ids)

    def begin(self, sequences: Sequence[SequenceStep]) -> Begin | None:
        """Return what makes a step's ids embeddings, with features where pictures stand; None for one without any."""
        if self._model.vision is None or not any(item.pictures for item in sequences):
            return None
        return partial(self._placed, sequences)

    def _placed(self, sequences: Sequence[SequenceStep], ids: Tensor) -> Tensor:
        rows, features, begin = [], [], 0
        for item in sequences:
            for part in item.pictures:
                where = np.frombuffer(part.rows, dtype=np.int32)
                rows.append(where + begin)
                features.append(self._features[part.name][part.first : part.first + len(where)])
            begin += item.num_tokens
        embedded = self._model.embed(ids)
        embedded[send(np.concatenate(rows).astype(np.int64), embedded.device)] = torch.cat(features)
        return embedded

    def _tiles(self, picture: Picture) -> Tensor:
        flat = np.frombuffer(picture.tiles, dtype=np.uint8).copy()  # torch takes no memory that it may not write to
        return send(flat, self._model.device).view(picture.num_tiles, picture.height, picture.width, 3)
