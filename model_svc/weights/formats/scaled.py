"""Weights of 8 bits each, float8 or int8, as a matrix of their own, with a scale beside: for all, a row, or a block.

What such a checkpoint says of activations (round them, by this scale or a fresh one) is a way to multiply faster: here
they are not rounded, so results are nearer to those of the model before it was quantized.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from model_svc.weights.formats.format import SCALES, Part, Shape, group_of
from model_svc.weights.stored.grouped_tensor import GroupedTensor

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


class Scaled:
    """number = code * scale; `block` [outputs, inputs] share one, or None: a scale for each output or for all."""

    codes = "weight"

    def __init__(
        self, name: str, *, dtypes: tuple[torch.dtype, ...] = FLOAT8, block: Shape | None = None,
        scales: tuple[str, ...] = ("weight_scale",), unneeded: tuple[str, ...] = (), ignored: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.name = name
        self.marks = scales
        self.unneeded = unneeded
        self.ignored = ignored
        self._block = block
        self._dtypes = dtypes

    def shape(self, codes: Shape) -> Shape:
        """Return the weight's own shape."""
        return codes

    def parts(self, out: int, size: int) -> Mapping[str, Part]:
        """Return the weight and its scales, which go by one of several names."""
        shapes: tuple[Shape, ...] = ((), (1,), (1, 1), (out,), (out, 1))
        if self._block:
            shapes = ((-(-out // self._block[0]), -(-size // self._block[1])),)
        scales = Part(shapes, SCALES, optional=len(self.marks) > 1)
        return {"weight": Part(((out, size),), self._dtypes), **dict.fromkeys(self.marks, scales)}

    def read(self, parts: Mapping[str, Tensor]) -> GroupedTensor:
        """Give each output its scales."""
        found = [parts[name] for name in self.marks if name in parts]
        if len(found) != 1:
            raise ValueError(f"it has both {' and '.join(self.marks)}")
        weight, scales = parts["weight"], found[0]
        out, size = weight.shape
        if self._block is None:
            return GroupedTensor(weight, scales.reshape(-1, 1).expand(out, 1), 0)
        rows, columns = self._block
        return GroupedTensor(
            weight, scales.repeat_interleave(rows, 0)[:out], 0, group_of=group_of(size, columns)
        )  # fmt: skip
