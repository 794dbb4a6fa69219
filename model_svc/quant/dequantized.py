"""Dequantize at load: every weight becomes a dense matrix in the computing dtype.

In float32 this is the exact mode, the reference that all faster methods are judged by.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from model_svc.quant.method import LinearOp
from model_svc.quant.tensor import QuantizedTensor


class Dequantized:
    """Dense products in `dtype` on `device`."""

    name = "dequantized"
    keeps_blocks = False

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self.num_bytes = 0

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of activations."""
        return self._dtype

    def linear(self, parts: Sequence[Tensor | QuantizedTensor], bias: Tensor | None) -> LinearOp:
        """Stack the parts into one dense matrix, part by part, so that no second copy of the whole exists."""
        if len(parts) == 1:
            weight = self.dense(parts[0])
        else:
            shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
            weight = torch.empty(shape, dtype=self._dtype, device=self._device)
            at = 0
            for part in parts:
                _fill(weight[at : at + part.shape[0]], part)
                at += part.shape[0]
            self.num_bytes += weight.nbytes
        return lambda x: functional.linear(x, weight, bias)

    def dense(self, tensor: Tensor | QuantizedTensor) -> Tensor:
        """Return the numbers in the computing dtype; no copy where the checkpoint holds them already."""
        if isinstance(tensor, QuantizedTensor):
            out = torch.empty(tensor.shape, dtype=self._dtype, device=self._device)
            _fill(out, tensor)
        else:
            out = tensor.to(device=self._device, dtype=self._dtype)
        self.num_bytes += out.nbytes
        return out


def _fill(out: Tensor, part: Tensor | QuantizedTensor) -> None:
    if not isinstance(part, QuantizedTensor):
        out.copy_(part)
    elif out.device.type == "cpu":
        part.dequantize(out=out)
    else:  # the blocks are the smallest form to send over the bus
        QuantizedTensor(part.blocks.to(out.device), part.shape, part.type).dequantize(out=out)
