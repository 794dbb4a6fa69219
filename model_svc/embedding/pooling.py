"""From token states to one vector per input, as the model directory's Sentence Transformers files ask for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model_svc.weights.errors import CheckpointError
from model_svc.weights.json_file import read_json

_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}


@dataclass(frozen=True)
class Pooling:
    """How states become a vector: `mode` is mean, cls or max; `normalize` makes it one long."""

    mode: str = "mean"
    normalize: bool = True

    def pool(self, states: Tensor, mask: Tensor) -> Tensor:
        """Pool float32 `states` [S, T, E] over the tokens that `mask` [S, T] (bool) names; returns [S, E]."""
        if self.mode == "cls":
            return states[:, 0]
        real = mask[..., None]
        if self.mode == "max":
            return states.masked_fill(~real, float("-inf")).amax(1)
        return (states * real).sum(1) / real.sum(1)

    def finish(self, vectors: Tensor, dimensions: int | None) -> Tensor:
        """Cut vectors [S, E] to their first `dimensions`; the shorter ones are as long (1) as the whole ones."""
        if dimensions is not None and dimensions < vectors.shape[-1]:
            return torch.nn.functional.normalize(vectors[:, :dimensions], dim=-1)
        return torch.nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors


def load_pooling(directory: Path) -> Pooling:
    """Read modules.json and the pooling module's config.json; without them mean, normalised.

    Raises CheckpointError for files that say what we cannot do.
    """
    modules = _read(directory / "modules.json")
    if modules is None:
        return Pooling()
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(directory / "modules.json", "must hold a list of modules")
    mode, normalize = "mean", False
    for module in modules:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            mode = _mode(directory / str(module.get("path", "")) / "config.json")
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise CheckpointError(directory / "modules.json", f"modules of type {kind!r} are not supported")
    return Pooling(mode, normalize)


def _mode(path: Path) -> str:
    config = _read(path)
    fields = config.items() if isinstance(config, dict) else ()
    chosen = [name for name, value in fields if name.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in _MODES:
        raise CheckpointError(path, f"needs one of {', '.join(_MODES)}, not {', '.join(chosen) or 'none'}")
    return _MODES[chosen[0]]


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except FileNotFoundError:
        return None
