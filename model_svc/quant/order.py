"""Inputs in the order in which a weight has them: GPTQ's activation order puts those of one group side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from model_svc.quant.method import LinearOp
from model_svc.weights.stored.tensor import QuantizedTensor

Part = Tensor | QuantizedTensor


class ReorderedLinear:
    """A product whose weight has its inputs in another order."""

    def __init__(self, op: LinearOp, order: Tensor) -> None:
        self._op = op
        self._order = order

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        return self._op(x.index_select(1, self._order))


def order_of(part: Part) -> Tensor | None:
    """Return the order of a part's inputs; None: as they are."""
    return part.order if isinstance(part, QuantizedTensor) else None


def share_order(parts: Sequence[Part]) -> bool:
    """Tell whether parts have their inputs in one order, so that they can be stacked."""
    first, *others = (order_of(part) for part in parts)
    if first is None:
        return all(order is None for order in others)
    return all(order is not None and torch.equal(order, first) for order in others)


def reordered(op: LinearOp, order: Tensor | None) -> LinearOp:
    """Return the product of inputs that come as they are."""
    return op if order is None else ReorderedLinear(op, order)
