"""Pairs -> scores: an encoder reads query and document as one, and a small head says how well they go together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model_svc.embedding.bert import Bert
from model_svc.embedding.inputs import Input, read
from model_svc.models.config import ModelConfig
from model_svc.weights.errors import CheckpointError

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"Sigmoid": torch.sigmoid, "Identity": lambda logits: logits}


class CrossEncoder:
    """A loaded reranker. `max_len` is the longest pair in tokens."""

    def __init__(
        self, directory: Path, *, max_len: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> None:
        """Load it. Raises CheckpointError."""
        self.encoder = Bert(directory, dtype=dtype, device=device)
        self._activation = _activation(self.encoder.config)
        self.max_len = max_len

    @torch.inference_mode()
    def embed(self, inputs: Sequence[Input]) -> list[bytes]:
        """Return the score of each pair, a little-endian float32."""
        encoder = self.encoder
        scores = read(inputs, encoder.device, lambda padded: self._activation(encoder.logits(encoder.encode(*padded))))
        return [score.numpy().tobytes() for score in scores]


def _activation(config: ModelConfig) -> Callable[[Tensor], Tensor]:
    """Return what makes scores of logits: a sigmoid, unless its makers say otherwise, as sentence-transformers does."""
    ours: Any = config.get("sentence_transformers", {})
    named = ours.get("activation_fn") if isinstance(ours, dict) else None
    named = named or config.get("sbert_ce_default_activation_function", "Sigmoid")
    name = str(named).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise CheckpointError(
            config.path, f"scores by {named!r} are not supported, those by {', '.join(_ACTIVATIONS)} are"
        )
    return _ACTIVATIONS[name]
