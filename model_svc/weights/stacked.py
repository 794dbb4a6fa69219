"""Experts that lie in one tensor, as layers ask for them: matrices and biases of each, gates apart from what they gate.

gpt-oss has inputs before outputs, and its gates take turns with what they gate. Granite has all gates first, and names
its router otherwise. Qwen 3.5 has the names of gpt-oss, less its biases, and the order of Granite.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from model_svc.weights.errors import CheckpointError
from model_svc.weights.source import Stored, TrackedSource

MAX_EXPERTS = 1 << 12  # of a layer


class _Stack(NamedTuple):
    """A tensor of all experts, of `dims` dimensions: into which of ours at `place` an expert's outputs part."""

    place: str
    parts: tuple[str, ...]
    dims: int = 3
    in_turns: bool = False
    inputs_first: bool = False

    def outputs(self, part: int, total: int) -> slice:
        """Return which of `total` outputs are those of a part."""
        if self.in_turns:
            return slice(part, total, len(self.parts))
        width = total // len(self.parts)
        return slice(part * width, (part + 1) * width)


class _Place(NamedTuple):
    """Outputs of an expert of the tensor `name`."""

    name: str
    expert: int
    outputs: slice
    inputs_first: bool


_BOTH, _DOWN = ("gate_proj", "up_proj"), ("down_proj",)
_GPT_OSS, _GRANITE = ".experts.", ".block_sparse_moe."
_EXPERTS = f"{_GRANITE}experts."
_STACKS = {
    f"{_GPT_OSS}gate_up_proj": _Stack(_GPT_OSS, _BOTH, in_turns=True, inputs_first=True),
    f"{_GPT_OSS}gate_up_proj_bias": _Stack(_GPT_OSS, _BOTH, dims=2, in_turns=True),
    f"{_GPT_OSS}down_proj": _Stack(_GPT_OSS, _DOWN, inputs_first=True),
    f"{_GPT_OSS}down_proj_bias": _Stack(_GPT_OSS, _DOWN, dims=2),
    f"{_GRANITE}input_linear.weight": _Stack(_EXPERTS, _BOTH),
    f"{_GRANITE}output_linear.weight": _Stack(_EXPERTS, _DOWN),
}
_QWEN_STACKS = {
    f"{_GPT_OSS}gate_up_proj": _Stack(_GPT_OSS, _BOTH),
    f"{_GPT_OSS}down_proj": _Stack(_GPT_OSS, _DOWN),
}
_RENAMED = {f"{_GRANITE}router.layer.weight": f"{_GRANITE}gate.weight"}
_SIGNS = (f"{_GPT_OSS}gate_up_proj", f"{_GPT_OSS}gate_up_proj_bias", f"{_GRANITE}input_linear.weight")


def stacked(names: Iterable[str]) -> bool:
    """Tell whether a checkpoint with these tensors holds experts so."""
    return any(name.endswith(_SIGNS) for name in names)


class StackedExperts(TrackedSource):
    """`experts.<n>.gate_proj.weight` and so on of each expert, and all other tensors of `source` as they are."""

    def __init__(self, source: TrackedSource) -> None:
        """Name the parts. Raises CheckpointError for one that the source has under this name too."""
        super().__init__()
        self.place = source.place
        self._source = source
        self._places: dict[str, _Place] = {}
        self._renamed: dict[str, str] = {}
        self.shapes = dict(source.shapes)
        biased = any(name.endswith("_proj_bias") for name in source.shapes)
        self._stacks = _STACKS if biased else {**_STACKS, **_QWEN_STACKS}
        for name, shape in source.shapes.items():
            if kind := next((kind for kind in self._stacks if name.endswith(kind)), None):
                self._take_apart(name, kind, shape)
            elif kind := next((kind for kind in _RENAMED if name.endswith(kind)), None):
                ours = name.removesuffix(kind) + _RENAMED[kind]
                self._enter(ours, name, shape)
                self._renamed[ours] = name

    def read(self, name: str) -> Stored:
        """Return a part of an expert [outputs, inputs], or a tensor as it is."""
        if name not in self._places:
            return self._source.read(self._renamed.get(name, name))
        place = self._places[name]
        whole = self._source.read(place.name)
        assert isinstance(whole, Tensor)
        expert = whole[place.expert]
        return (expert.T if place.inputs_first else expert)[place.outputs]

    def release(self) -> None:
        """Let go of memory that only reading took."""
        self._source.release()

    def _take_apart(self, name: str, kind: str, shape: tuple[int, ...]) -> None:
        stack = self._stacks[kind]
        if len(shape) != stack.dims or shape[0] > MAX_EXPERTS:
            return  # no stack of experts: whoever asks for it finds its shape at fault
        *inputs, total = shape[1:] if stack.inputs_first else shape[:0:-1]
        if total % len(stack.parts):
            return
        place, what = name.removesuffix(kind) + stack.place, "bias" if stack.dims == 2 else "weight"
        for expert in range(shape[0]):
            for number, part in enumerate(stack.parts):
                ours = f"{place}{expert}.{part}.{what}"
                self._enter(ours, name, (total // len(stack.parts), *inputs))
                self._places[ours] = _Place(name, expert, stack.outputs(number, total), stack.inputs_first)

    def _enter(self, name: str, theirs: str, shape: tuple[int, ...]) -> None:
        if name in self.shapes:
            raise CheckpointError(self.place, f"tensor {name!r} is there, and in {theirs!r} too")
        self.shapes.pop(theirs, None)
        self.shapes[name] = shape
