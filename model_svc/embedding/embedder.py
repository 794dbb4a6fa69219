"""Inputs -> vectors: pads inputs of like length together, encodes, pools. For a worker thread; torch frees the GIL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from model_svc.embedding.bert import Bert
from model_svc.embedding.inputs import Input, groups, pad
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
        vectors = [b""] * len(inputs)
        for group in groups([one.num_tokens for one in inputs]):
            padded = pad([inputs[index] for index in group], self.encoder.device)
            pooled = self._pooling.pool(self.encoder.encode(*padded), padded.mask).cpu()
            for index, vector in zip(group, pooled, strict=True):
                finished = self._pooling.finish(vector[None], inputs[index].dimensions)
                vectors[index] = finished[0].numpy().tobytes()
        return vectors
