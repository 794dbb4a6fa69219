"""A linear layer: a product that the quantization method prepared."""

from __future__ import annotations

from torch import Tensor

from model_svc.quant.dequantized import DenseLinear
from model_svc.quant.method import LinearOp


class Linear:
    """x [T, in] -> [T, out]."""

    def __init__(self, op: LinearOp) -> None:
        self._op = op

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
    def is_plain(self) -> bool:
        """Whether this is a product with dense numbers and nothing else."""
        return isinstance(self._op, DenseLinear) and self._op.bias is None

    @property
    def plain_weight(self) -> Tensor:
        """The weight [out, in] of a plain product."""
        assert isinstance(self._op, DenseLinear)
        return self._op.weight
