"""The feed-forward block of every expert on packed quantized weights, as `quantized_linear` multiplies.

Each expert's tokens stand side by side (`expert_order`), are rounded where they are taken from, and stay rounded behind
the gate. A weight's tiles hold all experts one after another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import activation, dispatch
from kernels.expert_order import ExpertOrder
from kernels.native import record
from kernels.native.packed_weight import PackedWeight
from kernels.quantized_linear import Rounded, rounded, values

Biases = tuple[Tensor, Tensor] | None  # of both products, float32 [X, 2F] and [X, E]


def quantized_experts(
    x: Tensor, gate_up: PackedWeight, down: PackedWeight, act: int, order: ExpertOrder, biases: Biases = None
) -> Tensor:
    """Return [P, E]: at each place of `order` what its expert makes of its token of `x` [T, E], float32.

    `gate_up` holds [2F, E] of each expert, gates first, `down` [E, F]; `act` is one of `activation`'s.
    """
    X = order.begins.shape[0] - 1
    (gates, E), (outputs, F) = gate_up.shape, down.shape
    if not stacks(gates // X, outputs // X) or gates != 2 * F * X or outputs != E * X:
        raise ValueError(f"weights of shapes {gate_up.shape} and {down.shape} are not those of {X} experts")
    if x.dim() != 2 or x.dtype != torch.float32 or x.shape[1] != E:
        raise ValueError(f"x is {x.dtype} of shape {tuple(x.shape)}; it must be float32 [T, {E}]")
    for bias, width in zip(biases, (2 * F, E), strict=True) if biases else ():
        if bias.shape != (X, width) or bias.dtype != torch.float32 or not bias.is_contiguous():
            raise ValueError(f"a bias is {bias.dtype} of shape {tuple(bias.shape)}; it must be float32 {(X, width)}")
    if dispatch.form(x) != "native":
        return reference(x, gate_up, down, act, order, biases)
    return _launch(x if x.stride(1) == 1 else x.contiguous(), gate_up, down, act, order, biases)


def stacks(gates: int, outputs: int) -> bool:
    """Tell whether weights of so many outputs can stand one after another: each begins a strip of tiles."""
    return gates % 64 == 0 and outputs % 16 == 0


def reference(
    x: Tensor, gate_up: PackedWeight, down: PackedWeight, act: int, order: ExpertOrder, biases: Biases
) -> Tensor:
    """Round and multiply expert by expert in plain torch."""
    X = order.begins.shape[0] - 1
    taken = values(rounded(x[order.rows]))
    out = x.new_empty((len(taken), x.shape[1]))
    first, second = gate_up.dequantize().chunk(X), down.dequantize().chunk(X)
    gate_up_bias, down_bias = biases or (torch.zeros(X, len(first[0])), torch.zeros(X, len(second[0])))
    for expert, span in order.spans():
        gated = activation.reference(taken[span] @ first[expert].T + gate_up_bias[expert], act)
        out[span] = values(rounded(gated)) @ second[expert].T + down_bias[expert]
    return out


def _launch(
    x: Tensor, gate_up: PackedWeight, down: PackedWeight, act: int, order: ExpertOrder, biases: Biases
) -> Tensor:
    P, X = order.rows.shape[0], order.begins.shape[0] - 1
    E, F = gate_up.shape[1], down.shape[1]
    out = record.empty((P, E))
    if P == 0:
        return out
    taken = Rounded(record.empty((P, E), torch.int8), record.empty((P, E // 32, 4)))
    gated = Rounded(record.empty((P, F), torch.int8), record.empty((P, F // 32, 4)))
    q, scales = taken.q.data_ptr(), taken.scales.data_ptr()
    gated_q, gated_scales = gated.q.data_ptr(), gated.scales.data_ptr()
    begins = order.begins.data_ptr()
    gate_up_bias, down_bias = biases or (None, None)
    records = [
        record.Record(record.QUANTIZE, (P, E, x.stride(0)), (x.data_ptr(), q, scales, order.rows.data_ptr())),
        record.Record(
            record.LINEAR, (P, E, 2 * F, 0, gate_up.format, act, X),
            (q, scales, gate_up.tiles.data_ptr(), 0, record.pointer(gate_up_bias), gated_q, gated_scales, begins),
            shape=record.BY_COLUMN,
        ),
        record.Record(
            record.LINEAR, (P, F, E, E, down.format, 0, X),
            (gated_q, gated_scales, down.tiles.data_ptr(), out.data_ptr(), record.pointer(down_bias), 0, 0, begins),
        ),
    ]  # fmt: skip
    record.call(records, (x, *taken, *gated, out, gate_up.tiles, down.tiles, *(biases or ()), *order))
    return out
