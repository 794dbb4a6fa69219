"""Inputs -> vectors: pads inputs of like length together, encodes, pools. For a worker thread; torch frees the GIL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from model_svc.embedding.bert import Bert
from model_svc.embedding.pooling import load_pooling

_PADDING = 1.25  # how much longer than the shortest of a group the longest may be; the rest is computed for nothing
_SHORT = 8  # tokens that are padded without a thought


class Embedder:
    """A loaded embedding model. `max_len` is the longest input in tokens."""

    def __init__(
        self, directory: Path, *, max_len: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> None:
        """Load it. Raises CheckpointError."""
        self._encoder = Bert(directory, dtype=dtype, device=device)
        self._pooling = load_pooling(directory)
        self.max_len = max_len
        self.dimensions = self._encoder.hidden_size
        self.vocab_size = self._encoder.config.vocab_size
        self.num_bytes = self._encoder.num_bytes

    def embed(self, inputs: Sequence[Sequence[int]], dimensions: Sequence[int | None]) -> list[bytes]:
        """Return the vector of each input, little-endian float32; `dimensions` shortens it (None: as it is)."""
        vectors = [b""] * len(inputs)
        for group in groups([len(ids) for ids in inputs]):
            for index, vector in zip(group, self._encode([inputs[index] for index in group]), strict=True):
                vectors[index] = self._pooling.finish(vector[None], dimensions[index])[0].numpy().tobytes()
        return vectors

    @torch.inference_mode()
    def _encode(self, inputs: Sequence[Sequence[int]]) -> torch.Tensor:
        longest = max(map(len, inputs))
        ids = torch.tensor([[*item, *[0] * (longest - len(item))] for item in inputs])
        lengths = torch.tensor([len(item) for item in inputs])
        mask = torch.arange(longest) < lengths[:, None]
        device = self._encoder.device
        return self._pooling.pool(self._encoder.encode(ids.to(device), mask.to(device)), mask.to(device)).cpu()


def groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the positions of inputs that are padded together, so that little is computed for nothing."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and lengths[index] > lengths[group[0]] * _PADDING + _SHORT:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
