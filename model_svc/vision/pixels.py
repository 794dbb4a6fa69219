"""From bytes of red, green and blue to the numbers that a vision tower was trained on, by the processor's config."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from model_svc.weights.errors import CheckpointError
from wire.pictures import read_processor


class Pixels:
    """A table of what each of the 256 values of a colour becomes: scaled, less the mean, over the deviation."""

    def __init__(self, directory: Path, dtype: torch.dtype, device: torch.device) -> None:
        """Read the three from a model directory. Raises ModelCardError, and CheckpointError for a deviation of 0."""
        said = read_processor(directory)
        values = np.arange(256, dtype=np.float64)
        if said.do_rescale:
            values = values * said.rescale_factor
        table = np.repeat(values.astype(np.float32)[None], 3, axis=0)
        if said.do_normalize:
            mean, deviation = (
                np.broadcast_to(np.array(numbers, dtype=np.float32), 3)[:, None]
                for numbers in (said.image_mean, said.image_std)
            )
            if not deviation.all():
                raise CheckpointError(directory, "image_std of the image processor must not be 0")
            table = (table - mean) / deviation
        self._table = torch.from_numpy(table).to(device=device, dtype=dtype)

    def __call__(self, tiles: Tensor) -> Tensor:
        """Return [n, 3, height, width] of `tiles` [n, height, width, 3] in bytes."""
        colours = tiles.unbind(-1)
        return torch.stack([row[colour.int()] for row, colour in zip(self._table, colours, strict=True)], 1)
