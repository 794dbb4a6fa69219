"""From bytes of red, green and blue to the numbers that a vision tower was trained on, by the processor's config."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model_svc.weights.errors import CheckpointError
from model_svc.weights.json_file import read_json


def processor_of(directory: Path) -> tuple[Path, dict[str, Any]]:
    """Return what is said of its image processor, {} if nothing, and in which file. Raises CheckpointError."""
    for name, part in (("processor_config.json", "image_processor"), ("preprocessor_config.json", "")):
        try:
            whole = read_json(directory / name)
        except FileNotFoundError:
            continue
        if not isinstance(whole, dict):
            raise CheckpointError(directory / name, "must hold a JSON object")
        found = whole.get(part) if part else whole
        if isinstance(found, dict):
            return directory / name, found
    return directory, {}


class Pixels:
    """A table of what each of the 256 values of a colour becomes: scaled, less the mean, over the deviation."""

    def __init__(self, directory: Path, dtype: torch.dtype, device: torch.device) -> None:
        """Read the three from a model directory; what it does not say is as usual. Raises CheckpointError."""
        path, raw = processor_of(directory)
        values = np.arange(256, dtype=np.float64)
        if raw.get("do_rescale", True):
            values = values * _numbers(path, raw, "rescale_factor", 1 / 255, 1)[0]
        table = np.repeat(values.astype(np.float32)[None], 3, axis=0)
        if raw.get("do_normalize", True):
            mean, deviation = (
                np.array(_numbers(path, raw, name, 0.5, 3), dtype=np.float32)[:, None]
                for name in ("image_mean", "image_std")
            )
            if not deviation.all():
                raise CheckpointError(path, "image_std must not be 0")
            table = (table - mean) / deviation
        self._table = torch.from_numpy(table).to(device=device, dtype=dtype)

    def __call__(self, tiles: Tensor) -> Tensor:
        """Return [n, 3, height, width] of `tiles` [n, height, width, 3] in bytes."""
        colours = tiles.unbind(-1)
        return torch.stack([row[colour.int()] for row, colour in zip(self._table, colours, strict=True)], 1)


def _numbers(path: Path, raw: dict[str, Any], name: str, usual: float, count: int) -> list[float]:
    value = usual if raw.get(name) is None else raw[name]
    numbers = value if isinstance(value, list) else [value] * count
    if len(numbers) != count or not all(type(each) in (int, float) and math.isfinite(each) for each in numbers):
        raise CheckpointError(path, f"{name} must be a number, or one for each colour, not {value!r}")
    return [float(each) for each in numbers]
