"""A checkpoint in which several tensors make one weight: layers see it as any other, by the weight's own name."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from model_svc.weights.errors import CheckpointError
from model_svc.weights.formats.format import Part, WeightFormat
from model_svc.weights.kv_scales import is_kv_scale
from model_svc.weights.safetensors import SafetensorsSource
from model_svc.weights.source import Stored, TrackedSource


class QuantizedSource(TrackedSource):
    """`<module>.weight` of each module that is stored in `form`, and all other tensors as they are."""

    def __init__(self, checkpoint: SafetensorsSource, form: WeightFormat) -> None:
        """Find the modules. Raises CheckpointError for one whose tensors are not those of the format."""
        super().__init__()
        self.place = checkpoint.place
        self._checkpoint = checkpoint
        self._form = form
        self._parts: dict[str, Mapping[str, Part]] = {}
        self.shapes = dict(checkpoint.shapes)
        for name in checkpoint.shapes:
            module, _, kind = name.rpartition(".")
            if kind in form.unneeded and not is_kv_scale(name):
                del self.shapes[name]
            elif kind in form.marks and module not in self._parts:
                self._parts[module] = self._found(module)
        for module, parts in self._parts.items():
            shape = form.shape(checkpoint.shapes[f"{module}.{form.codes}"])
            for kind in parts:
                self.shapes.pop(f"{module}.{kind}", None)
            self.shapes[f"{module}.weight"] = shape

    def read(self, name: str) -> Stored:
        """Return a weight as stored, or a tensor that is not quantized."""
        module, _, kind = name.rpartition(".")
        if kind != "weight" or module not in self._parts:
            tensor = self._checkpoint.read(name)
            if tensor.element_size() == 1:
                raise self._fault(name, f"is {tensor.dtype} but has no scale")
            return tensor
        tensors = {}
        for each, part in self._parts[module].items():
            tensors[each] = self._checkpoint.read(f"{module}.{each}")
            if tensors[each].dtype not in part.dtypes:
                wanted = " or ".join(str(dtype) for dtype in part.dtypes)
                raise self._fault(f"{module}.{each}", f"is {tensors[each].dtype}; {self._form.name} has {wanted}")
        try:
            return self._form.read(tensors)
        except ValueError as error:
            raise self._fault(name, f"cannot be made: {error}") from error

    def unused(self) -> frozenset[str]:
        """Return the names that nobody asked for yet, but for biases that add nothing (old GPTQ files have some)."""
        return frozenset(name for name in super().unused() if not self._adds_nothing(name))

    def release(self) -> None:
        """Let go of memory that only reading took."""
        self._checkpoint.release()

    def _found(self, module: str) -> dict[str, Part]:
        """Return the parts that a module has. Raises CheckpointError for a missing one or a shape that does not fit."""
        form, shapes = self._form, self._checkpoint.shapes
        if any(_matches(pattern, module) for pattern in form.ignored):
            raise CheckpointError(self.place, f"{module!r} is quantized, but the config says that it is not")
        codes = shapes.get(f"{module}.{form.codes}")
        if codes is None:
            raise self._fault(f"{module}.{form.codes}", "is missing")
        if len(codes) != 2:
            raise self._fault(f"{module}.{form.codes}", f"has shape {list(codes)}; a matrix is expected")
        found = {}
        for kind, part in form.parts(*form.shape(codes)).items():
            name = f"{module}.{kind}"
            if name not in shapes:
                if part.optional:
                    continue
                raise self._fault(name, "is missing")
            if shapes[name] not in part.shapes:
                wanted = " or ".join(str(list(shape)) for shape in part.shapes)
                raise self._fault(name, f"has shape {list(shapes[name])}; {form.name} needs {wanted}")
            found[kind] = part
        return found

    def _adds_nothing(self, name: str) -> bool:
        module, _, kind = name.rpartition(".")
        return kind == "bias" and module in self._parts and not bool(torch.any(self._checkpoint.read(name)))

    def _fault(self, name: str, fault: str) -> CheckpointError:
        return CheckpointError(self.place, f"tensor {name!r} {fault}")


def _matches(pattern: str, module: str) -> bool:
    return bool(re.match(pattern[3:], module)) if pattern.startswith("re:") else pattern == module
