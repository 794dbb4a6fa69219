import pytest
import torch

from kernels.route import Routes, Rule, route
from tests.kernels.close import Close


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize(("T", "X", "C"), [(1, 8, 2), (7, 60, 4), (5, 128, 8), (3, 5, 5), (4, 1, 1)])
def test_the_likeliest_experts_are_chosen_with_their_shares(
    device: str, close: Close, T: int, X: int, C: int, renormalise: bool
) -> None:
    logits = torch.randn(T, X + 3, device=device)[:, :X] * 2
    chosen, shares = route(logits, C, renormalise=renormalise)
    truth = logits.cpu().double().exp()
    truth /= truth.sum(1, keepdim=True)
    best = truth.topk(C)
    assert chosen.dtype == torch.int32
    assert torch.equal(chosen.cpu().long(), best.indices)
    close(shares, best.values / best.values.sum(1, keepdim=True) if renormalise else best.values)


def truth_of(logits: torch.Tensor, C: int, renormalise: bool, rule: Rule, bias: torch.Tensor | None) -> Routes:
    """Choose in float64, an expert at a time."""
    wide = logits.cpu().double()
    scores = wide.sigmoid() if rule.sigmoid else wide.softmax(1)
    chosen, X = [], logits.shape[1]
    for row in scores + (0 if bias is None else bias.cpu().double()):
        size = X // rule.groups
        groups = [row[n * size : (n + 1) * size] for n in range(rule.groups)]
        good = torch.stack([group.topk(min(rule.leaders, size)).values.sum() for group in groups])
        open_groups = good.topk(rule.kept).indices.tolist()
        allowed = [e for e in range(X) if e // size in open_groups]
        chosen.append(sorted(allowed, key=lambda e: -float(row[e]))[:C])
    indices = torch.tensor(chosen)
    shares = scores.gather(1, indices)
    return Routes(indices, (shares / shares.sum(1, keepdim=True) if renormalise else shares) * rule.scale)


@pytest.mark.parametrize(("biased", "renormalise"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize(
    ("X", "C", "rule"),
    [
        (8, 2, Rule(sigmoid=True)),
        (60, 6, Rule(sigmoid=True, scale=2.5)),
        (24, 4, Rule(sigmoid=True, groups=6, kept=2, scale=1.5)),
        (30, 6, Rule(groups=5, kept=1)),
        (12, 3, Rule()),
        (24, 4, Rule(groups=6, kept=2, leaders=1, scale=16.0)),
        (6, 3, Rule(groups=6, kept=3, leaders=1)),
        (256, 8, Rule(sigmoid=True, groups=8, kept=4, scale=2.5)),
    ],
)
def test_bias_and_groups_decide_who_is_chosen_and_have_no_part_in_shares(
    device: str, close: Close, X: int, C: int, rule: Rule, biased: bool, renormalise: bool
) -> None:
    logits = torch.randn(6, X, device=device) * 2
    bias = torch.randn(X, device=device) * 0.5 if biased else None
    found = route(logits, C, renormalise=renormalise, rule=rule, bias=bias)
    truth = truth_of(logits, C, renormalise, rule, bias)
    assert torch.equal(found.chosen.cpu().long(), truth.chosen)
    close(found.shares, truth.shares)
    if biased:
        assert not torch.equal(truth.chosen, truth_of(logits, C, renormalise, rule, None).chosen)


def test_of_equal_experts_the_lower_number_is_first(device: str) -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0], [2.0, 2.0, 2.0, 2.0, 2.0]], device=device)
    assert route(logits, 4, renormalise=True).chosen.tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]
    assert route(logits, 4, renormalise=True, rule=Rule(sigmoid=True)).chosen.tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]
    groups = Rule(sigmoid=True, groups=3, kept=2)
    assert route(torch.zeros(1, 6, device=device), 3, renormalise=True, rule=groups).chosen.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("rule", [Rule(), Rule(sigmoid=True, groups=2, kept=1)])
def test_a_row_of_no_numbers_chooses_experts_that_exist_and_its_shares_are_no_numbers(device: str, rule: Rule) -> None:
    logits = torch.randn(4, 6, device=device)
    logits[1] = torch.nan
    if not rule.sigmoid:
        logits[0, 3], logits[2, 5] = torch.nan, torch.inf
    for bias in (None, torch.randn(6, device=device)):
        chosen, shares = route(logits, 3, renormalise=True, rule=rule, bias=bias)
        assert bool(((chosen >= 0) & (chosen < 6)).all())
        assert shares.isnan().any(1).tolist() == [not rule.sigmoid, True, not rule.sigmoid, False]


def test_no_token_is_fine_and_what_cannot_be_chosen_is_not(device: str) -> None:
    assert route(torch.empty(0, 6, device=device), 2, renormalise=True).chosen.shape == (0, 2)
    some = torch.empty(3, 6, device=device)
    with pytest.raises(ValueError, match="7 experts"):
        route(some, 7, renormalise=True)
    for num_chosen, groups, kept in ((2, 4, 1), (4, 2, 1), (1, 2, 3), (1, 6, 6)):
        with pytest.raises(ValueError, match=f"{num_chosen} of 6 experts .* {kept} of {groups} groups"):
            route(some, num_chosen, renormalise=True, rule=Rule(groups=groups, kept=kept))
    with pytest.raises(ValueError, match="3 experts cannot stand for a group"):
        route(some, 1, renormalise=True, rule=Rule(groups=2, leaders=3))
    with pytest.raises(ValueError, match="float32"):
        route(some, 2, renormalise=True, bias=torch.zeros(5, device=device))
