"""Experts in MXFP4, all of a matrix in one tensor of codes and one of scales, as layers ask for them: one by one.

`experts.gate_up_proj` has the outputs of gate and up in turns; they become two matrices.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from model_svc.weights.errors import CheckpointError
from model_svc.weights.formats.format import Shape
from model_svc.weights.formats.mxfp4 import Mxfp4
from model_svc.weights.safetensors import SafetensorsSource
from model_svc.weights.source import Stored, TrackedSource
from model_svc.weights.stacked import MAX_EXPERTS
from model_svc.weights.stored.float4_tensor import BYTES, GROUP

_IN_TURNS = {"gate_up_proj": ("gate_proj", "up_proj")}
_KINDS = ("_blocks", "_scales")


class _Place(NamedTuple):
    """Where a tensor of ours lies: in those of `stack`, which expert, and which of its rows."""

    stack: str
    expert: int
    rows: slice


class Mxfp4Experts(TrackedSource):
    """`experts.<n>.<matrix>.weight` of each stack of experts, and all other tensors as they are."""

    def __init__(self, checkpoint: SafetensorsSource, form: Mxfp4) -> None:
        """Find the stacks. Raises CheckpointError for one whose tensors are not those of the format."""
        super().__init__()
        self.place = checkpoint.place
        self._checkpoint = checkpoint
        self._form = form
        self._places: dict[str, _Place] = {}
        self.shapes = dict(checkpoint.shapes)
        stacks = {name.removesuffix(kind) for name in checkpoint.shapes for kind in _KINDS if name.endswith(kind)}
        for stack in sorted(stacks):
            self._enter(stack)

    def read(self, name: str) -> Stored:
        """Return an expert's weight as stored, or a tensor that is not quantized."""
        found = self._places.get(name)
        if found is None:
            tensor = self._checkpoint.read(name)
            if tensor.element_size() == 1:
                raise self._fault(name, f"is {tensor.dtype} but has no scale")
            return tensor
        stack, expert, rows = found
        codes, scales = (self._bytes(stack + kind)[expert, rows] for kind in _KINDS)
        return self._form.read(codes, scales)

    def release(self) -> None:
        """Let go of memory that only reading took."""
        self._checkpoint.release()

    def _enter(self, stack: str) -> None:
        """Name the matrices of a stack. Raises CheckpointError for a missing tensor or a shape that does not fit."""
        experts, out, groups = self._outline(stack)
        prefix, _, last = stack.rpartition(".")
        names = _IN_TURNS.get(last, (last,))
        if out % len(names):
            raise self._fault(f"{stack}_blocks", f"has {out} outputs, no pairs of gate and up")
        for kind in _KINDS:
            del self.shapes[stack + kind]
        rows = out // len(names)
        for expert in range(experts):
            for at, name in enumerate(names):
                place = _Place(stack, expert, slice(at, None, len(names)))
                self._name(f"{prefix}.{expert}.{name}.weight", place, (rows, groups * GROUP))

    def _outline(self, stack: str) -> Shape:
        """Return experts, outputs and blocks of a stack."""
        codes, scales = (self._checkpoint.shapes.get(stack + kind) for kind in _KINDS)
        for kind, shape in zip(_KINDS, (codes, scales), strict=True):
            if shape is None:
                raise self._fault(stack + kind, "is missing")
        assert codes is not None
        assert scales is not None
        if self._form.ignores(stack):
            raise CheckpointError(self.place, f"{stack!r} is quantized, but the config says that it is not")
        if len(codes) != 4 or codes[3] != BYTES or 0 in codes:
            wanted = f"[experts, out, in / {GROUP}, {BYTES}]"
            raise self._fault(f"{stack}_blocks", f"has shape {list(codes)}; {self._form.name} needs {wanted}")
        if codes[0] > MAX_EXPERTS:
            raise self._fault(f"{stack}_blocks", f"has {codes[0]} experts; at most {MAX_EXPERTS} are read")
        if scales != codes[:3]:
            raise self._fault(f"{stack}_scales", f"has shape {list(scales)}; {self._form.name} needs {list(codes[:3])}")
        return codes[:3]

    def _name(self, name: str, place: _Place, shape: Shape) -> None:
        if name in self.shapes:
            raise self._fault(name, f"stands beside {place.stack!r}, which has it too")
        self._places[name] = place
        self.shapes[name] = shape

    def _bytes(self, name: str) -> torch.Tensor:
        tensor = self._checkpoint.read(name)
        if tensor.dtype != torch.uint8:
            raise self._fault(name, f"is {tensor.dtype}; {self._form.name} has torch.uint8")
        return tensor

    def _fault(self, name: str, fault: str) -> CheckpointError:
        return CheckpointError(self.place, f"tensor {name!r} {fault}")
