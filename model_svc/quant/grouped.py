"""Keep 4 and 8 bit weights as they are stored on a GPU too; what has no such form is dequantized."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.grouped_linear import grouped_linear
from kernels.grouped_weight import GroupedWeight
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.grouped_experts import stacked
from model_svc.quant.kept import Kept
from model_svc.quant.method import LinearOp
from model_svc.quant.order import order_of, reordered, share_order
from model_svc.weights.reading import Reading
from model_svc.weights.stored.grouped_tensor import GroupedTensor
from model_svc.weights.stored.tensor import QuantizedTensor


class GroupedLinear:
    """x W^T + b over weights that stay in their groups."""

    def __init__(self, weight: GroupedWeight, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        return grouped_linear(x, self._weight, self._bias)


class Grouped(Kept):
    """Products in `dtype` on `device` with weights as the checkpoint has them."""

    name = "grouped"

    def __init__(self, dtype: torch.dtype, device: torch.device, reading: Reading | None = None) -> None:
        super().__init__(Dequantized(dtype, device, reading))

    def linear(self, parts: Sequence[Tensor | QuantizedTensor], bias: Tensor | None) -> LinearOp:
        """Stack parts of one form, where that takes less than their numbers: a cut through activation order may not."""
        weight = stacked(parts, self._dense) if share_order(parts) else None
        if weight is None or weight.nbytes >= weight.shape[0] * weight.shape[1] * self.dtype.itemsize:
            return self._dense.linear(parts, bias)
        self._kept_bytes += weight.nbytes
        order = order_of(parts[0])
        return reordered(GroupedLinear(weight, bias), None if order is None else self._dense.sent(order))

    def keeps_experts(self, part: Tensor | QuantizedTensor) -> bool:
        """Tell that experts stay packed too, whichever their form."""
        return isinstance(part, GroupedTensor)
