"""A linear layer: a product that the quantization method prepared."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import few_rows, float8_linear
from kernels.float8_weight import Float8Weight
from kernels.quantize_rows import QuantizedRows
from model_svc.layers.adapters import LowRank
from model_svc.quant.dequantized import DenseLinear
from model_svc.quant.float8 import Float8Linear
from model_svc.quant.method import LinearOp
from model_svc.quant.native import PackedLinear


class Linear:
    """x [T, in] -> [T, out]. Adapters may add a low-rank part: steps that ask for one take no fused path."""

    def __init__(self, op: LinearOp, low_rank: LowRank | None = None) -> None:
        self._op = op
        self._low_rank = low_rank
        self._arrived: Tensor | None = None

    def __call__(self, x: Tensor | QuantizedRows) -> Tensor:
        """Multiply. Quantized rows are for a product that `rounds` them."""
        if isinstance(x, QuantizedRows):
            assert isinstance(self._op, Float8Linear)
        out = self._op(x)  # type: ignore[arg-type]
        if self._adapts:
            self._add_low_rank(x, out)
        return out

    def into(self, x: Tensor, out: Tensor) -> None:
        """Multiply into float32 `out` [T, out]."""
        if isinstance(self._op, DenseLinear):
            self._op.into(x, out)
        else:
            out.copy_(self._op(x))
        if self._adapts:
            self._add_low_rank(x, out)

    @property
    def packed(self) -> PackedLinear | None:
        """The product if it is one with packed weights, and nothing else in this step."""
        return self._op if isinstance(self._op, PackedLinear) and not self._adapts else None

    @property
    def dense(self) -> DenseLinear | None:
        """The product if it is one with dense numbers; what adapters add is not in it."""
        return self._op if isinstance(self._op, DenseLinear) else None

    @property
    def is_plain(self) -> bool:
        """Whether this is a product with dense numbers and nothing else, which more can be fused with."""
        return isinstance(self._op, DenseLinear) and self._op.bias is None and not self._adapts

    def add(self, x: Tensor, total: Tensor, multiplier: float = 1.0) -> None:
        """Add the product, times `multiplier`, to `total` [T, out] in place: one kernel, which rounds the sum once."""
        total.addmm_(x, self.plain_weight.t(), alpha=multiplier)
        if self._adapts:
            self._add_low_rank(x, total, multiplier)

    def rounds(self, x: Tensor) -> Float8Weight | None:
        """Return the weight for which rows like `x` are rounded to float8, as whoever makes them may do as well."""
        if self._adapts or not isinstance(self._op, Float8Linear):
            return None
        return self._op.weight if float8_linear.rounds(x) else None

    @property
    def _adapts(self) -> bool:
        return self._low_rank is not None and self._low_rank.is_asked

    def _add_low_rank(self, x: Tensor | QuantizedRows, out: Tensor, multiplier: float = 1.0) -> None:
        assert self._low_rank is not None and isinstance(x, Tensor)
        self._low_rank.add(x, out, multiplier)

    @property
    def serves_few_rows(self) -> bool:
        """Whether this is a product with dense or float8 numbers, which `kernels.few_rows` takes."""
        return isinstance(self._op, DenseLinear | Float8Linear) and few_rows.suits(self._op.weight)

    @property
    def weight(self) -> few_rows.Weight:
        """The weight [out, in] of a product that serves few rows."""
        assert isinstance(self._op, DenseLinear | Float8Linear)
        return self._op.weight

    @property
    def bias(self) -> Tensor | None:
        """The bias [out] of such a product, if it has one."""
        assert isinstance(self._op, DenseLinear | Float8Linear)
        return self._op.bias

    def add_few_rows(
        self, x: Tensor, total: Tensor, then: few_rows.RmsNormWeights | None = None
    ) -> few_rows.HalfNormed | None:
        """Add the product to `total` [T, out] in place; may begin the norm `then` of it."""
        return few_rows.linear_add(x, self.weight, total, self.arrived, then, self.bias)

    @property
    def arrived(self) -> Tensor:
        """Counters for a product whose sum is split between programs, zero between calls."""
        if self._arrived is None:
            weight = self.weight
            self._arrived = torch.zeros(weight.shape[0] // 16, dtype=torch.int32, device=weight.device)
        return self._arrived

    @property
    def plain_weight(self) -> Tensor:
        """The weight [out, in] of a plain product."""
        assert isinstance(self._op, DenseLinear)
        return self._op.weight
