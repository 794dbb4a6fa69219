import pytest
import torch

from kernels.expert_order import expert_order
from kernels.route import Routes


@pytest.mark.parametrize(("T", "X", "C"), [(1, 8, 2), (7, 60, 4), (700, 5, 3), (3, 1, 1), (0, 4, 2)])
def test_tokens_stand_by_expert_and_in_their_order(device: str, T: int, X: int, C: int) -> None:
    chosen = torch.rand(T, X).argsort(1)[:, :C].int().contiguous()
    order = expert_order(Routes(chosen.to(device), torch.rand(T, C, device=device)), X)
    numbers = chosen.tolist()
    pairs = sorted((numbers[token][choice], token, choice) for token in range(T) for choice in range(C))
    assert order.rows.tolist() == [token for _, token, _ in pairs]
    assert order.begins.tolist() == [sum(expert < each for expert, *_ in pairs) for each in range(X + 1)]
    places = {(token, choice): place for place, (_, token, choice) in enumerate(pairs)}
    assert order.places.tolist() == [[places[token, choice] for choice in range(C)] for token in range(T)]


def test_experts_must_be_int32(device: str) -> None:
    with pytest.raises(ValueError, match="int32"):
        expert_order(Routes(torch.zeros(2, 2, device=device), torch.zeros(2, 2, device=device)), 4)
