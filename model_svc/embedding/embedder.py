"""Inputs -> vectors: pads inputs of like length together, encodes, pools. For a worker thread; torch frees the GIL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from model_svc.embedding.bert import Bert
from model_svc.embedding.inputs import Input, read
from model_svc.embedding.pooling import load_pooling


class Embedder:
    """A loaded embedding model. `max_len` is the longest input in tokens."""

    def __init__(
        self, directory: Path, *, max_len: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> None:
        """Load it. Raises CheckpointError."""
        self.encoder = Bert(directory, dtype=dtype, device=device)
        self._pooling = load_pooling(directory)
        self.max_len = max_len

    @torch.inference_mode()
    def embed(self, inputs: Sequence[Input]) -> list[bytes]:
        """Return the vector of each input, little-endian float32."""
        pooling, encoder = self._pooling, self.encoder
        pooled = read(inputs, encoder.device, lambda padded: pooling.pool(encoder.encode(*padded), padded.mask))
        vectors = (pooling.finish(row[None], one.dimensions)[0] for row, one in zip(pooled, inputs, strict=True))
        return [vector.numpy().tobytes() for vector in vectors]
