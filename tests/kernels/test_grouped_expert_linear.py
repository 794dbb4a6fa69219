"""Products with experts whose weights stay at 4 or 8 bits, beside the formula."""

import pytest
import torch
from torch import Tensor

from kernels import activation, dispatch
from kernels.expert_order import expert_order
from kernels.grouped_expert_linear import grouped_expert_linear
from kernels.grouped_weight import GroupedWeight
from kernels.route import Routes
from tests.kernels.close import Close
from tests.kernels.test_expert_linear import ordered
from tests.kernels.test_grouped_linear import KINDS
from tests.kernels.test_grouped_linear import weight as one_weight


def made(
    device: str, kind: str, X: int, F: int, E: int, G: int, *, zeros: bool = True, scales: torch.dtype = torch.float16
) -> tuple[GroupedWeight, Tensor]:
    """Return the experts' weights one after another, and their numbers [X, F, E] in float64."""
    some = one_weight(kind, X * F, E, G, zeros=zeros, scales=scales, device=device)
    weight = GroupedWeight.of(some.codes, some.scales, some.zeros, some.middle, some.each, hopper=False, most=128)
    return weight, some.numbers().view(X, F, E)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("T", "X", "C", "E", "F", "G", "zeros", "scales"),
    [
        (1, 8, 2, 256, 48, 2, True, torch.float16),
        (45, 3, 2, 160, 35, 5, False, torch.float32),  # short groups, a last block that is filled up
        (9, 6, 4, 128, 33, 1, True, torch.bfloat16),
    ],
)
def test_each_token_meets_the_weight_of_its_experts(
    device: str, close: Close, kind: str, T: int, X: int, C: int, E: int, F: int, G: int, zeros: bool,
    scales: torch.dtype,
) -> None:  # fmt: skip
    order, expert = ordered(device, T, X, C, unused=1)
    weight, numbers = made(device, kind, X, F, E, G, zeros=zeros, scales=scales)
    x, bias = torch.randn(T, E + 8, device=device).half()[:, :E], torch.randn(X, F, device=device).half()
    truth = torch.einsum("pe,pfe->pf", x.cpu().double()[order.rows.cpu().long()], numbers[expert])
    rounded = dispatch.form(x) != "triton"  # the weights, to x's dtype
    close(grouped_expert_linear(x, weight, order, gather=True), truth, loose=4.0 if rounded else 1.0)
    found = grouped_expert_linear(x[order.rows.long()].contiguous(), weight, order, bias, gather=False)
    close(found, truth + bias.cpu().double()[expert], loose=4.0 if rounded else 1.0)


@pytest.mark.parametrize("T", [3, 40])
def test_gates_and_ups_meet_behind_their_product(device: str, close: Close, T: int) -> None:
    order, expert = ordered(device, T, 4, 2, unused=1)
    weight, numbers = made(device, "nibbles", 4, 70, 128, 4)
    x, bias = torch.randn(T, 128, device=device).half(), torch.randn(4, 70, device=device).half()
    truth = torch.einsum("pe,pfe->pf", x.cpu().double()[order.rows.cpu().long()], numbers[expert])
    truth = activation.reference(truth + bias.cpu().double()[expert], activation.SILU)
    found = grouped_expert_linear(x, weight, order, bias, gather=True, act=activation.SILU)
    close(found, truth, loose=4.0 if dispatch.form(x) != "triton" else 2.0)


def test_in_a_fixed_order_a_tokens_bits_do_not_depend_on_the_others(device: str) -> None:
    if device == "cpu" and dispatch.form(torch.empty(0)) != "triton":
        pytest.skip("libraries choose their order by size")
    chosen = torch.randint(0, 3, (40, 1), dtype=torch.int32)
    x, (weight, _) = torch.randn(40, 128, device=device).half(), made(device, "nibbles", 3, 20, 128, 4)

    def run(some: slice) -> Tensor:
        order = expert_order(Routes(chosen[some].contiguous().to(device), torch.rand(1, device=device)), 3)
        return grouped_expert_linear(x[some], weight, order, gather=True)[order.places.flatten().long()]

    with dispatch.fixed_order():
        assert torch.equal(run(slice(0, 40))[17], run(slice(17, 18))[0])


def test_what_does_not_fit_is_named(device: str) -> None:
    order, _ = ordered(device, 4, 3, 2)
    (weight, _), (two, _) = (made(device, "nibbles", X, 8, 64, 1) for X in (3, 2))
    short, _ = made(device, "nibbles", 3, 8, 96, 8)  # groups of 12, which no tensor core takes
    x = torch.empty(4, 64, device=device)
    for wrong in (two, short):
        with pytest.raises(ValueError, match="weight has shape"):
            grouped_expert_linear(x, wrong, order, gather=True)
    with pytest.raises(ValueError, match="bias has shape"):
        grouped_expert_linear(x, weight, order, torch.empty(2, 8, device=device), gather=True)
    with pytest.raises(ValueError, match="x has shape"):
        grouped_expert_linear(x, weight, order, gather=False)
