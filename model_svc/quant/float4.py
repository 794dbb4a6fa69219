"""Keep the experts of a layer as they are stored on a GPU, if that is MXFP4: 4 bit floats in blocks of 32."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from kernels.expert_order import ExpertOrder
from kernels.float4_expert_linear import float4_expert_linear
from kernels.float4_experts import Float4Experts
from kernels.quantized_experts import Biases
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.method import Parts
from model_svc.weights.stored.block_tensor import BlockTensor
from model_svc.weights.stored.float4_tensor import BYTES, Float4Tensor
from model_svc.weights.stored.tensor import QuantizedTensor


class Float4Blocks:
    """The feed-forward blocks of X experts: `gate_up` [X, 2F, E] and `down` [X, E, F]."""

    def __init__(self, gate_up: Float4Experts, down: Float4Experts, act: int, biases: Biases) -> None:
        self._gate_up, self._down, self._act = gate_up, down, act
        self._biases = biases or (None, None)
        self.num_bytes = gate_up.nbytes + down.nbytes

    def __call__(self, x: Tensor, order: ExpertOrder) -> Tensor:
        """Multiply each token with its experts' weights."""
        first, second = self._biases
        gated = float4_expert_linear(x, self._gate_up, order, first, gather=True, act=self._act)
        return float4_expert_linear(gated, self._down, order, second, gather=False)


def float4_blocks(
    gate_up: Sequence[Parts], down: Parts, act: int, biases: Biases, dense: Dequantized
) -> Float4Blocks | None:
    """Stack experts on the device of `dense`; None if they are of another form, or have scales that no kernel takes."""
    first = _stacked(gate_up, dense)
    second = None if first is None else _stacked([[part] for part in down], dense)
    return None if first is None or second is None else Float4Blocks(first, second, act, biases)


def _stacked(experts: Sequence[Parts], dense: Dequantized) -> Float4Experts | None:
    if not all(_known(part) for parts in experts for part in parts):
        return None
    begins = list(accumulate((part.shape[0] for part in experts[0]), initial=0))
    weight = Float4Experts.empty(len(experts), begins[-1], experts[0][0].shape[1], dense.device)
    for expert, parts in enumerate(experts):
        for begin, part in zip(begins, parts, strict=False):
            assert isinstance(part, QuantizedTensor)
            weight.fill(expert, begin, *_codes_and_exponents(part.moved(dense.sent)))
    return weight if weight.fit else None


def _known(part: Tensor | QuantizedTensor) -> bool:
    return isinstance(part, Float4Tensor) or (isinstance(part, BlockTensor) and part.type.name == "MXFP4")


def _codes_and_exponents(part: QuantizedTensor) -> tuple[Tensor, Tensor]:
    """Return codes [F, E] one by one, and exponents [F, E / 32]."""
    rows = part.shape[0]
    if isinstance(part, Float4Tensor):
        packed = part.packed
        return torch.stack((packed & 15, packed >> 4), 3).view(rows, -1), part.exponents
    raw = part.stored.view(rows, -1, 1 + BYTES)
    packed = raw[:, :, 1:]
    return torch.cat((packed & 15, packed >> 4), 2).view(rows, -1), raw[:, :, 0]
