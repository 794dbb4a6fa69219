"""Linear layers of which each rank has a part: they exchange what they computed behind the product.

What is fused behind such a product would see a part of the sum, so only the addition to the residual is: rank 0 has it
in its product, the others begin with nothing, and what they add up is the new residual.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import few_rows
from kernels.quantize_rows import QuantizedRows
from model_svc.layers.adapters import LowRank
from model_svc.layers.group import Group
from model_svc.layers.linear import Linear
from model_svc.quant.method import LinearOp

_TILE = 16  # rows of a weight that `kernels.few_rows` takes together


class SummedLinear(Linear):
    """A product that is cut along its inputs: x [T, in / size] -> the sum over ranks [T, out]."""

    packed = None  # what takes a packed product apart would leave the sum out

    def __init__(self, op: LinearOp, group: Group, low_rank: LowRank | None = None) -> None:
        super().__init__(op, low_rank)
        self._group = group

    def __call__(self, x: Tensor | QuantizedRows) -> Tensor:
        """Multiply, and add up over the ranks."""
        out = super().__call__(x)
        self._group.add_up(out)
        return out

    def add(self, x: Tensor, total: Tensor, multiplier: float = 1.0) -> None:
        """Add the product, times `multiplier`, to `total` [T, out] in place."""
        total.addmm_(x, self.plain_weight.t(), alpha=multiplier, beta=float(self._group.rank == 0))
        if self._adapts:
            self._add_low_rank(x, total, multiplier)
        self._group.add_up(total)

    def add_few_rows(self, x: Tensor, total: Tensor, then: few_rows.RmsNormWeights | None = None) -> None:
        """Add the product to `total` [T, out] in place; the norm `then` cannot begin before the sum is known."""
        del then
        if self._group.rank:
            total.zero_()
        super().add_few_rows(x, total)
        self._group.add_up(total)


class GatheredLinear(Linear):
    """A product that is cut along its outputs: x [T, in] -> all ranks' outputs [T, out] on every rank, in float32.

    Everybody then draws from the same bits, so that no drawn token has to be sent.
    """

    def __init__(self, op: LinearOp, group: Group, out: int, begins: list[int]) -> None:
        super().__init__(op)
        self._group = group
        self._out = out
        self._begins = begins
        self._width = head_parts(out, group.size)[0]

    def __call__(self, x: Tensor | QuantizedRows) -> Tensor:
        """Multiply."""
        assert isinstance(x, Tensor)
        out = torch.empty(x.shape[0], self._out, dtype=torch.float32, device=x.device)
        self.into(x, out)
        return out

    def into(self, x: Tensor, out: Tensor) -> None:
        """Multiply into float32 `out` [T, out]."""
        own = torch.empty(x.shape[0], self._width, dtype=torch.float32, device=x.device)
        super().into(x, own)
        for begin, part in zip(self._begins, self._group.gather(own), strict=True):
            out[:, begin : begin + self._width] = part


def head_parts(out: int, size: int) -> tuple[int, list[int]]:
    """Return how many outputs each rank computes and where its part begins; the last parts may overlap."""
    width = min(-(-out // (size * _TILE)) * _TILE, out)
    return width, [min(rank * width, out - width) for rank in range(size)]
