"""Keep the experts of a layer as they are stored on a GPU, if that is 4 or 8 bits in groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.expert_order import ExpertOrder
from kernels.grouped_expert_linear import grouped_expert_linear
from kernels.grouped_weight import GroupedWeight
from kernels.quantized_experts import Biases
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.method import Parts
from model_svc.quant.order import order_of
from model_svc.weights.stored.grouped_tensor import GroupedTensor

_BLOCK = 128  # inputs that an expert's kernel takes at once


class GroupedBlocks:
    """The feed-forward blocks of X experts, one after another: `gate_up` [X * 2F, E] and `down` [X * E, F]."""

    def __init__(self, gate_up: GroupedWeight, down: GroupedWeight, act: int, biases: Biases) -> None:
        self._gate_up, self._down, self._act = gate_up, down, act
        self._biases = biases or (None, None)
        self.num_bytes = gate_up.nbytes + down.nbytes

    def __call__(self, x: Tensor, order: ExpertOrder) -> Tensor:
        """Multiply each token with its experts' weights."""
        first, second = self._biases
        gated = grouped_expert_linear(x, self._gate_up, order, first, gather=True, act=self._act)
        return grouped_expert_linear(gated, self._down, order, second, gather=False)


def grouped_blocks(
    gate_up: Sequence[Parts], down: Parts, act: int, biases: Biases, dense: Dequantized
) -> GroupedBlocks | None:
    """Stack experts on the device of `dense`; None if they are of several forms, or of one that no kernel takes."""
    first, second = (_kept(parts, dense) for parts in ([part for pair in gate_up for part in pair], down))
    return None if first is None or second is None else GroupedBlocks(first, second, act, biases)


def _kept(parts: Parts, dense: Dequantized) -> GroupedWeight | None:
    if any(order_of(part) is not None for part in parts):
        return None
    weight = stacked(parts, dense, hopper=False, most=_BLOCK)
    small = weight is not None and weight.nbytes < weight.shape[0] * weight.shape[1] * dense.dtype.itemsize
    return weight if weight is not None and small and weight.spans else None


def stacked(parts: Parts, dense: Dequantized, *, hopper: bool | None = None, most: int = 256) -> GroupedWeight | None:
    """Return one weight of all parts; None if they are of several forms, or of one that no kernel reads."""
    even = [part.evened() if isinstance(part, GroupedTensor) else None for part in parts]
    kept = [part for part in even if part is not None and part.codes.dtype != torch.float8_e5m2]
    if len(kept) < len(parts) or len({_form(part) for part in kept}) > 1:
        return None
    first = kept[0]
    zeros = [part.zeros for part in kept if isinstance(part.zeros, Tensor)]
    return GroupedWeight.of(
        codes=_whole([part.codes for part in kept], dense),
        scales=_whole([part.scales for part in kept], dense),
        zeros=_whole(zeros, dense) if zeros else None,
        middle=0 if isinstance(first.zeros, Tensor) else first.zeros,
        each=8 // first.bits,
        hopper=hopper,
        most=most,
    )


def _whole(parts: Sequence[Tensor], dense: Dequantized) -> Tensor:
    sent = [dense.sent(part.contiguous()) for part in parts]
    return sent[0] if len(sent) == 1 else torch.cat(sent)


def _form(part: GroupedTensor) -> tuple[object, ...]:
    zeros = part.zeros.dtype if isinstance(part.zeros, Tensor) else part.zeros
    return part.codes.dtype, part.bits, part.group, part.scales.dtype, zeros
