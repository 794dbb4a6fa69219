"""How a linear layer's weights, as they lie in the checkpoint, become something that multiplies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from kernels.expert_order import ExpertOrder
from kernels.native.packed_weight import PackedWeight
from kernels.quantized_experts import Biases
from model_svc.weights.stored.tensor import QuantizedTensor

# x [T, in] -> x W^T + b [T, out]
LinearOp = Callable[[Tensor], Tensor]
# x [T, E], and who computes what -> what each expert makes of its tokens [P, E]
ExpertsOp = Callable[[Tensor, ExpertOrder], Tensor]

Parts = Sequence[Tensor | QuantizedTensor]  # stacked along the output dimension


class QuantMethod(Protocol):
    """Chosen once per model. Parts are stacked along the output dimension (q, k and v of one layer, say)."""

    name: str
    keeps_blocks: bool  # multiplies with quantized blocks as they are, instead of with numbers made of them

    @property
    def num_bytes(self) -> int:
        """What the weights prepared so far take on the device."""
        ...

    def linear(self, parts: Parts, bias: Tensor | None) -> LinearOp:
        """Prepare the product with the stacked parts, each [out, in]."""
        ...

    def experts(self, gate_up: Sequence[Parts], down: Parts, act: int, biases: Biases = None) -> ExpertsOp:
        """Prepare the gated feed-forward blocks of X experts: of each a gate and an up [F, E], and a down [E, F].

        `act` is one of `kernels.activation`'s; `biases` are as `dense` returned them.
        """
        ...

    def dense(self, tensor: Tensor | QuantizedTensor) -> Tensor:
        """Return a tensor that is used as numbers (norms, biases, embedding rows) in the computing dtype."""
        ...

    def exact(self, tensor: Tensor | QuantizedTensor) -> Tensor:
        """Return a tensor as float32 numbers, whatever is computed in."""
        ...

    def table(self, tensor: Tensor | QuantizedTensor) -> Tensor | PackedWeight:
        """Return an embedding table in the form that rows are taken from."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of activations."""
        ...
