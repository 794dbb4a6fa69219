from itertools import pairwise

import pytest
import torch

from kernels import dispatch
from kernels.activation import CLAMPED, GELU_TANH, SILU
from kernels.expert_order import expert_order
from kernels.expert_sum import expert_sum
from kernels.native.library import set_threads
from kernels.native.packed_weight import PackedWeight
from kernels.native.tape import Arena, Tape
from kernels.quantized_experts import quantized_experts
from kernels.quantized_linear import gated_rounded, quantized_linear
from kernels.rms_norm import rms_norm
from kernels.route import route
from tests.kernels.native.blocks import random_blocks


def stacked(name: str, X: int, rows: int, values: int) -> tuple[PackedWeight, list[PackedWeight]]:
    """Return one weight of all experts, and each expert's own."""
    blocks = [random_blocks(name, rows, values) for _ in range(X)]
    return PackedWeight(blocks, name, values), [PackedWeight([each], name, values) for each in blocks]


@pytest.mark.parametrize(("gates", "downs"), [("Q4_0", "Q8_0"), ("Q4_K", "Q6_K"), ("Q5_1", "Q4_1")])
@pytest.mark.parametrize(
    ("T", "X", "C", "act", "biased"),
    [(1, 8, 2, SILU, False), (5, 3, 3, GELU_TANH, True), (150, 4, 2, SILU, False), (40, 4, 2, CLAMPED, True)],
)
def test_each_token_has_the_bits_that_its_experts_alone_give_it(
    isa: str, gates: str, downs: str, T: int, X: int, C: int, act: int, biased: bool
) -> None:
    E, F = 256, 512 if downs == "Q6_K" else 96
    gate_up, each_gate_up = stacked(gates, X, 2 * F, E)
    down, each_down = stacked(downs, X, E, F)
    x = torch.randn(T, E)
    biases = (torch.randn(X, 2 * F), torch.randn(X, E)) if biased else None
    order = expert_order(route(torch.randn(T, X), C, renormalise=True), X)
    alone = torch.empty(T * C, E)
    for n, (begin, end) in enumerate(pairwise(order.begins.tolist())):
        if end > begin:
            taken = x[order.rows[begin:end].long()].contiguous()
            first, second = (bias[n] for bias in biases) if biases else (None, None)
            gated = gated_rounded(taken, each_gate_up[n], act, first)
            alone[begin:end] = quantized_linear(gated, [each_down[n]], second)
    for threads in (1, 3):
        set_threads(threads)
        assert torch.equal(quantized_experts(x, gate_up, down, act, order, biases), alone)
    set_threads(None)


def test_the_reference_means_the_same(isa: str) -> None:
    gate_up, _ = stacked("Q4_0", 4, 128, 64)
    down, _ = stacked("Q8_0", 4, 64, 64)
    x, order = torch.randn(9, 64), expert_order(route(torch.randn(9, 4), 2, renormalise=True), 4)
    biases = torch.randn(4, 128), torch.randn(4, 64)
    fast = quantized_experts(x, gate_up, down, CLAMPED, order, biases)
    with dispatch.forced("reference"):
        slow = quantized_experts(x, gate_up, down, CLAMPED, order, biases)
    torch.testing.assert_close(fast, slow, rtol=0, atol=0.02 * float(slow.std()))  # ties are rounded apart


def test_a_replay_follows_other_choices(isa: str) -> None:
    """Also where as many rows are rounded as the norm right before makes: they are not the same ones."""
    X, T, E = 4, 90, 512  # enough for threads to share
    gate_up, _ = stacked("Q4_0", X, 128, E)
    down, _ = stacked("Q8_0", X, E, 64)
    x, logits, weight = torch.randn(T, E), torch.randn(T, X), torch.ones(E)

    def step() -> torch.Tensor:
        routes = route(logits, 1, renormalise=True)
        order = expert_order(routes, X)
        normed = rms_norm(x, weight, 1e-6)
        return expert_sum(quantized_experts(normed, gate_up, down, SILU, order), order.places, routes.shares)

    tape = Tape(Arena())
    with tape.recording():
        out = step()
    for threads in (1, 3):
        set_threads(threads)
        x.copy_(torch.randn(T, E))
        logits.copy_(torch.randn(T, X))
        expected = step().clone()
        tape.replay()
        assert torch.equal(out, expected)
    set_threads(None)


def test_experts_that_do_not_begin_a_strip_are_refused(isa: str) -> None:
    gate_up, _ = stacked("Q4_0", 2, 32, 64)
    down, _ = stacked("Q4_0", 2, 64, 32)
    order = expert_order(route(torch.randn(3, 2), 1, renormalise=True), 2)
    with pytest.raises(ValueError, match="not those of 2 experts"):
        quantized_experts(torch.randn(3, 64), gate_up, down, SILU, order)


def test_biases_of_another_size_are_refused(isa: str) -> None:
    gate_up, _ = stacked("Q4_0", 2, 64, 64)
    down, _ = stacked("Q4_0", 2, 64, 32)
    order = expert_order(route(torch.randn(3, 2), 1, renormalise=True), 2)
    for biases in ((torch.zeros(2, 32), torch.zeros(2, 64)), (torch.zeros(2, 64), torch.zeros(64))):
        with pytest.raises(ValueError, match="a bias is"):
            quantized_experts(torch.randn(3, 64), gate_up, down, SILU, order, biases)
