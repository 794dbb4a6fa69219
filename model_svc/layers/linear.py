"""A linear layer: a product that the quantization method prepared."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import few_rows
from model_svc.quant.dequantized import DenseLinear
from model_svc.quant.method import LinearOp
from model_svc.quant.native import PackedLinear


class Linear:
    """x [T, in] -> [T, out]."""

    def __init__(self, op: LinearOp) -> None:
        self._op = op
        self._arrived: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        return self._op(x)

    def into(self, x: Tensor, out: Tensor) -> None:
        """Multiply into float32 `out` [T, out]."""
        if isinstance(self._op, DenseLinear):
            self._op.into(x, out)
        else:
            out.copy_(self._op(x))

    @property
    def packed(self) -> PackedLinear | None:
        """The product if it is one with packed weights."""
        return self._op if isinstance(self._op, PackedLinear) else None

    @property
    def is_plain(self) -> bool:
        """Whether this is a product with dense numbers and nothing else, which more can be fused with."""
        return isinstance(self._op, DenseLinear) and self._op.bias is None

    def add(self, x: Tensor, total: Tensor, multiplier: float = 1.0) -> None:
        """Add the product, times `multiplier`, to `total` [T, out] in place: one kernel, which rounds the sum once."""
        total.addmm_(x, self.plain_weight.t(), alpha=multiplier)

    @property
    def serves_few_rows(self) -> bool:
        """Whether this is a product with dense numbers and nothing else, which `kernels.few_rows` may fuse."""
        return isinstance(self._op, DenseLinear) and self._op.bias is None and few_rows.suits(self._op.weight)

    def add_few_rows(
        self, x: Tensor, total: Tensor, then: few_rows.RmsNormWeights | None = None
    ) -> few_rows.HalfNormed | None:
        """Add the product to `total` [T, out] in place; may begin the norm `then` of it."""
        return few_rows.linear_add(x, self.plain_weight, total, self.arrived, then)

    @property
    def arrived(self) -> Tensor:
        """Counters for a product whose sum is split between programs, zero between calls."""
        if self._arrived is None:
            weight = self.plain_weight
            self._arrived = torch.zeros(weight.shape[0] // 16, dtype=torch.int32, device=weight.device)
        return self._arrived

    @property
    def plain_weight(self) -> Tensor:
        """The weight [out, in] of a plain product."""
        assert isinstance(self._op, DenseLinear)
        return self._op.weight
