"""A linear layer: a product that the quantization method prepared."""

from __future__ import annotations

from torch import Tensor

from model_svc.quant.method import LinearOp


class Linear:
    """x [T, in] -> [T, out]."""

    def __init__(self, op: LinearOp) -> None:
        self._op = op

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        return self._op(x)
