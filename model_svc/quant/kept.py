"""Keep the experts of MXFP4 as they are stored; what methods share that keep more so, all else becoming numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.native.packed_weight import PackedWeight
from kernels.quantized_experts import Biases
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.float4 import Float4Blocks, float4_blocks
from model_svc.quant.grouped_experts import GroupedBlocks, grouped_blocks
from model_svc.quant.method import ExpertsOp, LinearOp, Parts
from model_svc.weights.stored.tensor import QuantizedTensor


class Kept:
    """A method that hands on to `dense` what it does not keep; the bytes of what it does are in `_kept_bytes`."""

    name = "kept"
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

    def linear(self, parts: Parts, bias: Tensor | None) -> LinearOp:
        """Prepare a product with numbers."""
        return self._dense.linear(parts, bias)

    def experts(self, gate_up: Sequence[Parts], down: Parts, act: int, biases: Biases = None) -> ExpertsOp:
        """Keep experts of MXFP4, and those that `keeps_experts` names; prepare all others as numbers."""
        kept: Float4Blocks | GroupedBlocks | None = float4_blocks(gate_up, down, act, biases, self._dense)
        if kept is None and self.keeps_experts(down[0]):
            kept = grouped_blocks(gate_up, down, act, biases, self._dense)
        if kept is None:
            return self._dense.experts(gate_up, down, act, biases)
        self._kept_bytes += kept.num_bytes
        return kept

    def keeps_experts(self, part: Tensor | QuantizedTensor) -> bool:  # noqa: ARG002 - methods that keep more say which
        """Tell whether experts of such weights stay as they are."""
        return False

    def dense(self, tensor: Tensor | QuantizedTensor) -> Tensor:
        """Return a tensor as numbers."""
        return self._dense.dense(tensor)

    def exact(self, tensor: Tensor | QuantizedTensor) -> Tensor:
        """Return a tensor as float32 numbers."""
        return self._dense.exact(tensor)

    def table(self, tensor: Tensor | QuantizedTensor) -> Tensor | PackedWeight:
        """Return an embedding table as numbers."""
        return self._dense.table(tensor)
