"""Dequantize at load: every weight becomes a dense matrix in the computing dtype.

In float32 this is the exact mode, the reference that all faster methods are judged by.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels import dispatch, few_rows, fixed_linear, gemv
from kernels.expert_linear import expert_linear
from kernels.expert_order import ExpertOrder
from kernels.quantized_experts import Biases
from model_svc.quant.method import ExpertsOp, LinearOp, Parts
from model_svc.weights.reading import Reading
from model_svc.weights.stored.tensor import QuantizedTensor
from model_svc.weights.upload import Upload


class DenseLinear:
    """x W^T + b. `weight` [out, in] and `bias` are open to layers that fuse more into the product."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        return gemv.linear(x, self.weight, self.bias)

    def into(self, x: Tensor, out: Tensor) -> None:
        """Multiply into float32 `out`: where the tensor cores sum in float32, nothing is rounded on the way."""
        if dispatch.fixed() and dispatch.form(x) == "triton":
            fixed_linear.fixed_linear(x, self.weight, self.bias, out)
        elif self.bias is None and few_rows.fits(x, x.shape[0]) and few_rows.suits(self.weight):
            few_rows.linear_into(x, self.weight, out)
        elif x.is_cuda and x.dtype != torch.float32 and self.bias is None:
            torch.ops.aten.mm.dtype_out(x, self.weight.t(), torch.float32, out=out)
        else:
            out.copy_(self(x))


class DenseExperts:
    """The feed-forward blocks of X experts: `gate_up` [X, 2F, E] and `down` [X, E, F]."""

    def __init__(self, gate_up: Tensor, down: Tensor, act: int, biases: Biases) -> None:
        self._gate_up, self._down, self._act = gate_up, down, act
        self._biases = biases or (None, None)

    def __call__(self, x: Tensor, order: ExpertOrder) -> Tensor:
        """Multiply each token with its experts' weights."""
        first, second = self._biases
        gated = expert_linear(x, self._gate_up, order, first, gather=True, act=self._act)
        return expert_linear(gated, self._down, order, second, gather=False)


class Dequantized:
    """Dense products in `dtype` on `device`; with `reading` matrices may arrive there after they are handed out."""

    name = "dequantized"
    keeps_blocks = False

    def __init__(self, dtype: torch.dtype, device: torch.device, reading: Reading | None = None) -> None:
        self._dtype = dtype
        self._device = device
        self._upload = Upload(device)
        self._reading = reading
        self.num_bytes = 0

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of activations."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """Return where products are computed."""
        return self._device

    def linear(self, parts: Parts, bias: Tensor | None) -> LinearOp:
        """Stack the parts into one dense matrix."""
        return DenseLinear(self.dense(parts[0]) if len(parts) == 1 else self._stacked(parts), bias)

    def experts(self, gate_up: Sequence[Parts], down: Parts, act: int, biases: Biases = None) -> ExpertsOp:
        """Stack the experts' matrices."""
        first, second = self._stacked([part for parts in gate_up for part in parts]), self._stacked(down)
        X, F, E = len(down), down[0].shape[1], down[0].shape[0]
        return DenseExperts(first.view(X, 2 * F, E), second.view(X, E, F), act, biases)

    def _stacked(self, parts: Parts) -> Tensor:
        """Return one dense matrix, filled part by part, so that no second copy of the whole exists."""
        shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        weight = torch.empty(shape, dtype=self._dtype, device=self._device)
        at = 0
        for part in parts:
            self.fill(weight[at : at + part.shape[0]], part)
            at += part.shape[0]
        self.num_bytes += weight.nbytes
        return weight

    def dense(self, tensor: Tensor | QuantizedTensor) -> Tensor:
        """Return the numbers in the computing dtype; no copy where the checkpoint holds them already."""
        if isinstance(tensor, QuantizedTensor) or tensor.device.type != self._device.type:
            out = torch.empty(tensor.shape, dtype=self._dtype, device=self._device)
            self.fill(out, tensor)
        else:
            out = tensor.to(device=self._device, dtype=self._dtype).contiguous()  # a rank's columns are not
        self.num_bytes += out.nbytes
        return out

    def exact(self, tensor: Tensor | QuantizedTensor) -> Tensor:
        """Return a tensor as float32 numbers, whatever is computed in."""
        numbers = tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
        return numbers.to(device=self._device, dtype=torch.float32)

    def table(self, tensor: Tensor | QuantizedTensor) -> Tensor:
        """Return an embedding table as numbers."""
        return self.dense(tensor)

    def fill(self, out: Tensor, part: Tensor | QuantizedTensor) -> None:
        """Fill `out` on the device with a part's numbers, now or, with `reading`, soon."""
        if out.device.type == "cpu":
            if isinstance(part, QuantizedTensor):
                part.dequantize(out=out)
            else:
                out.copy_(part)
        elif not isinstance(part, QuantizedTensor):
            if self._reading is not None and self._reading.takes(out, part):
                self._reading.fill(out, part)
                return
            self._upload.fill(out, part)
        else:  # as it is stored, it is smallest to send over the bus
            part.moved(self.sent).dequantize(out=out)

    def sent(self, stored: Tensor) -> Tensor:
        """Return a tensor, as it is stored, on the device."""
        there = torch.empty(stored.shape, dtype=stored.dtype, device=self._device)
        self._upload.fill(there, stored)
        return there
