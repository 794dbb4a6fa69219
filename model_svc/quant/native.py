"""Keep quantized weights packed and multiply with int8 activations: the fast path on CPUs, by the native kernels.

Weights are the checkpoint's own, as GGML blocks; only activations are rounded. What has no packed form is dequantized.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels import dispatch
from kernels.expert_order import ExpertOrder
from kernels.native import library
from kernels.native.packed_weight import PackedWeight, packable
from kernels.quantized_experts import Biases, quantized_experts, stacks
from kernels.quantized_linear import Rounded, gated_rounded, gates, quantized_linear
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.kept import Kept
from model_svc.quant.method import ExpertsOp, LinearOp, Parts
from model_svc.quant.order import order_of, reordered, share_order
from model_svc.weights.stored.block_tensor import BlockTensor
from model_svc.weights.stored.float4_tensor import Float4Tensor
from model_svc.weights.stored.grouped_tensor import GroupedTensor
from model_svc.weights.stored.tensor import QuantizedTensor

_STRIP = 16  # output rows of a tile: the next part of a stack can only begin at a multiple


def usable() -> bool:
    """Tell whether this machine has the kernels, and whether nobody asked for another form."""
    return library.built() and dispatch.form(torch.empty(0)) == "native"


class PackedLinear:
    """x W^T + b over weights that lie one after another along the outputs, each in one format."""

    def __init__(self, weights: Sequence[PackedWeight], bias: Tensor | None) -> None:
        self._weights = tuple(weights)
        self._bias = bias

    def __call__(self, x: Tensor | Rounded) -> Tensor:
        """Multiply."""
        return quantized_linear(x, self._weights, self._bias)

    @property
    def gates(self) -> bool:
        """Whether `gated` computes this product as the gate of another one."""
        return len(self._weights) == 1 and gates(self._weights[0])

    def gated(self, x: Tensor, act: int) -> Rounded:
        """Return act(first half of the product) * second half, rounded for the next product."""
        return gated_rounded(x, self._weights[0], act, self._bias)


class PackedExperts:
    """The feed-forward blocks of experts, whose packed weights stand one after another."""

    def __init__(self, gate_up: PackedWeight, down: PackedWeight, act: int, biases: Biases) -> None:
        self._gate_up, self._down, self._act, self._biases = gate_up, down, act, biases

    def __call__(self, x: Tensor, order: ExpertOrder) -> Tensor:
        """Multiply each token with its experts' weights."""
        return quantized_experts(x, self._gate_up, self._down, self._act, order, self._biases)


class Native(Kept):
    """Packed products on the CPU; activations are float32 between them."""

    name = "native"

    def __init__(self) -> None:
        super().__init__(Dequantized(torch.float32, torch.device("cpu")))
        self._tables: dict[int, tuple[BlockTensor, PackedWeight]] = {}

    def linear(self, parts: Parts, bias: Tensor | None) -> LinearOp:
        """Pack the parts; neighbours of one format become one weight."""
        found = [_packable(part) for part in parts]
        blocks = [part for part in found if part is not None]
        if len(blocks) < len(parts) or not share_order(parts):
            return self._dense.linear(parts, bias)
        runs: list[list[BlockTensor]] = []
        for part in blocks:
            aligned = bool(runs) and sum(item.shape[0] for item in runs[-1]) % _STRIP == 0
            if aligned and runs[-1][0].type == part.type:
                runs[-1].append(part)
            else:
                runs.append([part])
        packed = PackedLinear([self._pack(run) for run in runs], None if bias is None else bias.contiguous())
        return reordered(packed, order_of(parts[0]))

    def experts(self, gate_up: Sequence[Parts], down: Parts, act: int, biases: Biases = None) -> ExpertsOp:
        """Pack the experts of a layer into two weights, if each is of one format."""
        first, second = (self._one_format(parts) for parts in ([one for pair in gate_up for one in pair], down))
        gates = sum(part.shape[0] for part in gate_up[0])
        if first is None or second is None or not stacks(gates, down[0].shape[0]):
            return self._dense.experts(gate_up, down, act, biases)
        return PackedExperts(self._pack(first), self._pack(second), act, biases)

    def _one_format(self, parts: Parts) -> list[BlockTensor] | None:
        """Return parts of one format that can be packed, with their inputs in the usual order; None for others."""
        blocks = [each for part in parts if order_of(part) is None and (each := _packable(part)) is not None]
        return blocks if len(blocks) == len(parts) and len({each.type for each in blocks}) == 1 else None

    def table(self, tensor: Tensor | QuantizedTensor) -> Tensor | PackedWeight:
        """Return an embedding table; a tied head uses the same tiles."""
        blocks = _packable(tensor)
        if blocks is None or order_of(tensor) is not None:
            return self.dense(tensor)
        packed = self._pack([blocks])
        self._tables[id(blocks)] = blocks, packed
        return packed

    def _pack(self, parts: Sequence[BlockTensor]) -> PackedWeight:
        known = self._tables.get(id(parts[0])) if len(parts) == 1 else None
        if known is not None:
            return known[1]
        packed = PackedWeight([part.blocks for part in parts], parts[0].type.name, parts[0].shape[1])
        self._kept_bytes += packed.tiles.nbytes
        return packed


def _packable(part: Tensor | QuantizedTensor) -> BlockTensor | None:
    blocks = part.as_blocks() if isinstance(part, GroupedTensor | Float4Tensor) else part
    if not isinstance(blocks, BlockTensor) or len(blocks.shape) != 2:
        return None
    return blocks if packable(blocks.type.name, blocks.shape[1]) else None
