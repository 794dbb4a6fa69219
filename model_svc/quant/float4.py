"""Keep the experts of a layer as they are stored on a GPU, if that is MXFP4: 4 bit floats in blocks of 32."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from torch import Tensor

from kernels import activation
from kernels.expert_order import ExpertOrder
from kernels.float4_expert_linear import float4_expert_linear
from kernels.float4_experts import Float4Experts
from kernels.quantized_experts import Biases
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.method import Parts
from model_svc.weights.stored.block_tensor import BlockTensor


class Float4Blocks:
    """The feed-forward blocks of X experts: `gate_up` [X, 2F, E] and `down` [X, E, F]."""

    def __init__(self, gate_up: Float4Experts, down: Float4Experts, act: int, biases: Biases) -> None:
        self._gate_up, self._down, self._act = gate_up, down, act
        self._biases = biases or (None, None)
        self.num_bytes = gate_up.nbytes + down.nbytes

    def __call__(self, x: Tensor, order: ExpertOrder) -> Tensor:
        """Multiply each token with its experts' weights."""
        first, second = self._biases
        both = float4_expert_linear(x, self._gate_up, order, first, gather=True)
        return float4_expert_linear(activation.act_and_mul(both, self._act), self._down, order, second, gather=False)


def float4_blocks(
    gate_up: Sequence[Parts], down: Parts, act: int, biases: Biases, dense: Dequantized
) -> Float4Blocks | None:
    """Stack experts on the device of `dense`; None if they are of another form, or have scales that no kernel takes."""
    first = _stacked(gate_up, dense)
    second = None if first is None else _stacked([[part] for part in down], dense)
    return None if first is None or second is None else Float4Blocks(first, second, act, biases)


def _stacked(experts: Sequence[Parts], dense: Dequantized) -> Float4Experts | None:
    each = [
        [part for part in parts if isinstance(part, BlockTensor) and part.type.name == "MXFP4"] for parts in experts
    ]
    if any(len(known) < len(parts) for known, parts in zip(each, experts, strict=True)):
        return None
    outputs, (_, inputs) = [part.shape[0] for part in each[0]], each[0][0].shape
    begins = list(accumulate(outputs, initial=0))
    weight = Float4Experts.empty(len(each), begins[-1], inputs, dense.device)
    for expert, parts in enumerate(each):
        for begin, part in zip(begins, parts, strict=False):
            weight.fill(expert, begin, dense.sent(part.blocks))
    return weight if weight.fit else None
