"""Norm, router, choice and order of few rows in one kernel, against float64."""

import pytest
import torch

from kernels.expert_choice import MAX_ROWS, Router, expert_choice
from kernels.few_rows import RmsNormWeights
from kernels.route import Rule
from tests.kernels.close import Close
from tests.kernels.test_route import truth_of


@pytest.mark.parametrize(
    ("T", "X", "C", "E", "biased", "rule"),
    [
        (1, 12, 3, 48, False, Rule()),
        (2, 128, 8, 40, True, Rule()),
        (5, 24, 4, 33, True, Rule(sigmoid=True, groups=6, kept=2, scale=1.5)),
        (9, 6, 2, 64, False, Rule()),
        (16, 5, 1, 16, True, Rule(sigmoid=True, scale=2.5)),
    ],
)
def test_rows_are_normed_and_ordered_by_the_experts_that_they_choose(
    device: str, close: Close, T: int, X: int, C: int, E: int, biased: bool, rule: Rule
) -> None:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    x = torch.randn(T, E, device=device, dtype=dtype) * 3
    norm = RmsNormWeights(torch.rand(E, device=device, dtype=dtype) + 0.5, 1e-2, 0.5)
    weight = torch.randn(X, E, device=device, dtype=dtype)
    bias = torch.randn(X, device=device, dtype=dtype) if biased else None
    deciding = torch.randn(X, device=device) if rule.sigmoid else None
    arrived = torch.zeros(MAX_ROWS + 1, dtype=torch.int32, device=device)
    choice = expert_choice(x, norm, Router(weight, bias, C, True, rule, deciding), arrived)
    wide = x.cpu().double()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps) * (norm.weight.cpu().double() + 0.5)
    close(choice.normed, normed)
    logits = choice.normed.cpu().double() @ weight.cpu().double().T + (0 if bias is None else bias.cpu().double())
    truth = truth_of(logits, C, True, rule, deciding)
    assert torch.equal(choice.routes.chosen.cpu().long(), truth.chosen)
    close(choice.routes.shares, truth.shares, loose=3)
    experts, order = truth.chosen.flatten().sort(stable=True)
    assert choice.order.rows.tolist() == (order // C).tolist()
    assert choice.order.places.flatten()[order.to(device)].tolist() == list(range(T * C))
    assert choice.order.begins.tolist() == [int((experts < n).sum()) for n in range(X + 1)]
    assert not arrived.any()


def test_wrong_arguments_are_named() -> None:
    x, norm, arrived = torch.zeros(2, 16), RmsNormWeights(torch.ones(16), 1e-5), torch.zeros(MAX_ROWS + 1).int()
    router = Router(torch.zeros(4, 16), None, 2, renormalise=True)
    with pytest.raises(ValueError, match="x has shape"):
        expert_choice(torch.zeros(MAX_ROWS + 1, 16), norm, router, arrived)
    with pytest.raises(ValueError, match="weight"):
        expert_choice(x, norm, router._replace(weight=torch.zeros(4, 8)), arrived)
    with pytest.raises(ValueError, match="bias"):
        expert_choice(x, norm, router._replace(bias=torch.zeros(3)), arrived)
    with pytest.raises(ValueError, match="5 experts"):
        expert_choice(x, norm, router._replace(num_chosen=5), arrived)
    with pytest.raises(ValueError, match="arrived"):
        expert_choice(x, norm, router, arrived[1:])
