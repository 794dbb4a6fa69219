"""Weights of a model directory in safetensors form, one file or several with an index, mapped instead of read."""

from __future__ import annotations

import mmap
from pathlib import Path

import torch
from torch import Tensor

from model_svc.weights.errors import CheckpointError
from model_svc.weights.json_file import read_json
from model_svc.weights.mapped import map_file as map_file
from model_svc.weights.safetensors_header import TensorPlace, read_header
from model_svc.weights.source import TrackedSource

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class SafetensorsSource(TrackedSource):
    """The tensors of `model.safetensors`, or of the shards that `model.safetensors.index.json` names."""

    def __init__(self, directory: Path, places: dict[str, tuple[Path, TensorPlace]] | None = None) -> None:
        """Read all headers. Raises CheckpointError for a missing shard or tensor, or a malformed file."""
        super().__init__()
        self.place = str(directory)
        self._places = _open(directory) if places is None else places
        self._maps: dict[Path, mmap.mmap] = {}
        self.shapes = {name: place.shape for name, (_, place) in self._places.items()}

    @classmethod
    def of_file(cls, path: Path) -> SafetensorsSource:
        """Return the tensors of one file of any name. Raises CheckpointError."""
        return cls(path, {name: (path, place) for name, place in read_header(path).items()})

    def read(self, name: str) -> Tensor:
        """Return a tensor that shares the mapped file's memory (writing to it copies the page, never the file)."""
        path, place = self._places[name]
        if place.num_bytes == 0:
            return torch.empty(place.shape, dtype=place.dtype)
        view = self._maps.get(path) or self._maps.setdefault(path, map_file(path))
        raw = torch.frombuffer(view, dtype=torch.uint8, count=place.num_bytes, offset=place.offset)
        if place.offset % place.dtype.itemsize:
            raw = raw.clone()
        return raw.view(place.dtype).view(place.shape)


def has_safetensors(directory: Path) -> bool:
    """Tell whether a directory holds weights in this form."""
    return any(directory.glob("*.safetensors")) or (directory / _INDEX).exists()


def _open(directory: Path) -> dict[str, tuple[Path, TensorPlace]]:
    index = directory / _INDEX
    if index.exists() and not (directory / _SINGLE).exists():
        return _open_shards(directory, _weight_map(index))
    path = directory / _SINGLE
    if not path.exists():
        found = sorted(directory.glob("*.safetensors"))
        if len(found) != 1:
            raise CheckpointError(
                directory, f"needs {_SINGLE} or {_INDEX}; it holds {len(found)} other safetensors files"
            )
        path = found[0]
    return {name: (path, place) for name, place in read_header(path).items()}


def _weight_map(index: Path) -> dict[str, str]:
    content = read_json(index)
    found = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(found, dict) or not found or not all(isinstance(file, str) for file in found.values()):
        raise CheckpointError(index, "needs a weight_map from tensor names to file names")
    for file in set(found.values()):
        if Path(file).name != file or "\\" in file or not file.endswith(".safetensors"):
            raise CheckpointError(index, f"{file!r} is no name of a safetensors file in this directory")
    return found


def _open_shards(directory: Path, weight_map: dict[str, str]) -> dict[str, tuple[Path, TensorPlace]]:
    """Take exactly what the index names: tensors and files beside that are ignored, missing ones refused."""
    headers = {file: read_header(directory / file) for file in sorted(set(weight_map.values()))}
    places: dict[str, tuple[Path, TensorPlace]] = {}
    for name, file in weight_map.items():
        place = headers[file].get(name)
        if place is None:
            raise CheckpointError(directory / file, f"the index promises tensor {name!r} here, but it is missing")
        places[name] = (directory / file, place)
    return places
