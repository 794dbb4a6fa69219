import pytest
import torch

from kernels.route import route
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


def test_of_equal_experts_the_lower_number_is_first(device: str) -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0], [2.0, 2.0, 2.0, 2.0, 2.0]], device=device)
    assert route(logits, 4, renormalise=True).chosen.tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]


def test_a_row_of_no_numbers_chooses_experts_that_exist_and_its_shares_are_no_numbers(device: str) -> None:
    logits = torch.randn(4, 6, device=device)
    logits[0, 3], logits[1], logits[2, 5] = torch.nan, torch.nan, torch.inf
    chosen, shares = route(logits, 3, renormalise=True)
    assert bool(((chosen >= 0) & (chosen < 6)).all())
    assert shares.isnan().any(1).tolist() == [True, True, True, False]


def test_no_token_is_fine_and_too_many_choices_are_not(device: str) -> None:
    assert route(torch.empty(0, 6, device=device), 2, renormalise=True).chosen.shape == (0, 2)
    with pytest.raises(ValueError, match="7 experts"):
        route(torch.empty(3, 6, device=device), 7, renormalise=True)
