"""What methods share that keep some weights as they are stored: all else becomes numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.native.packed_weight import PackedWeight
from kernels.quantized_experts import Biases
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.method import ExpertsOp, Parts
from model_svc.weights.stored.tensor import QuantizedTensor


class Kept:
    """The part of a method that hands on to `dense`; the bytes of what is kept are counted in `_kept_bytes`."""

    keeps_blocks = True

    def __init__(self, dense: Dequantized) -> None:
        self._dense = dense
        self._kept_bytes = 0

    @property
    def num_bytes(self) -> int:
        """What the weights prepared so far take."""
        return self._dense.num_bytes + self._kept_bytes

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of activations."""
        return self._dense.dtype

    def experts(self, gate_up: Sequence[Parts], down: Parts, act: int, biases: Biases = None) -> ExpertsOp:
        """Prepare experts as numbers."""
        return self._dense.experts(gate_up, down, act, biases)

    def dense(self, tensor: Tensor | QuantizedTensor) -> Tensor:
        """Return a tensor as numbers."""
        return self._dense.dense(tensor)

    def exact(self, tensor: Tensor | QuantizedTensor) -> Tensor:
        """Return a tensor as float32 numbers."""
        return self._dense.exact(tensor)

    def table(self, tensor: Tensor | QuantizedTensor) -> Tensor | PackedWeight:
        """Return an embedding table as numbers."""
        return self._dense.table(tensor)
