"""gpt-oss's experts as layers ask for them: a matrix and a bias for each, gates apart from what they gate.

Its checkpoints hold those of a layer in one tensor, inputs before outputs, and gates and what they gate take turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from model_svc.weights.errors import CheckpointError
from model_svc.weights.source import Stored, TrackedSource
from model_svc.weights.stacked import MAX_EXPERTS

_ALL, _EVEN, _ODD = slice(None), slice(0, None, 2), slice(1, None, 2)
# A tensor of all experts -> what of an expert's outputs is a tensor of ours.
_PARTS = {
    "gate_up_proj": {"gate_proj.weight": _EVEN, "up_proj.weight": _ODD},
    "gate_up_proj_bias": {"gate_proj.bias": _EVEN, "up_proj.bias": _ODD},
    "down_proj": {"down_proj.weight": _ALL},
    "down_proj_bias": {"down_proj.bias": _ALL},
}


class _Place(NamedTuple):
    """Some outputs of an expert of the tensor `name`."""

    name: str
    expert: int
    outputs: slice


def interleaved(names: Iterable[str]) -> bool:
    """Tell whether a checkpoint with these tensors holds experts so."""
    return any(name.endswith(".experts.gate_up_proj_bias") for name in names)


class InterleavedExperts(TrackedSource):
    """`experts.<n>.gate_proj.weight` and so on of each expert, and all other tensors of `source` as they are."""

    def __init__(self, source: TrackedSource) -> None:
        """Name the parts. Raises CheckpointError for one that the source has under this name too."""
        super().__init__()
        self.place = source.place
        self._source = source
        self._places: dict[str, _Place] = {}
        self.shapes = dict(source.shapes)
        for name, shape in source.shapes.items():
            place, _, kind = name.rpartition("experts.")
            if kind in _PARTS and len(shape) == (2 if kind.endswith("bias") else 3) and shape[0] <= MAX_EXPERTS:
                del self.shapes[name]
                for expert in range(shape[0]):
                    for part, outputs in _PARTS[kind].items():
                        self._enter(f"{place}experts.{expert}.{part}", _Place(name, expert, outputs))

    def read(self, name: str) -> Stored:
        """Return a part of an expert [outputs, inputs], or a tensor as it is."""
        if name not in self._places:
            return self._source.read(name)
        place = self._places[name]
        whole = self._source.read(place.name)
        assert isinstance(whole, Tensor)
        return whole[place.expert].movedim(-1, 0)[place.outputs]

    def release(self) -> None:
        """Let go of memory that only reading took."""
        self._source.release()

    def _enter(self, name: str, place: _Place) -> None:
        if name in self.shapes:
            raise CheckpointError(self.place, f"tensor {name!r} is there, and in {place.name!r} too")
        *inputs, outputs = self._source.shapes[place.name][1:]
        self._places[name] = place
        self.shapes[name] = (len(range(outputs)[place.outputs]), *inputs)
