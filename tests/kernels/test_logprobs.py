"""Log-probabilities of the best tokens and the chosen one against log_softmax."""

import pytest
import torch

from kernels.logprobs import top_logprobs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("V", "n"), [(7, 7), (300, 0), (300, 5), (4200, 20)])
def test_best_tokens_and_the_chosen_one_equal_log_softmax(device: str, V: int, n: int, dtype: torch.dtype) -> None:
    logits = (torch.randn(4, V, device=device) * 4).to(dtype)
    chosen = torch.randint(V, (4,), device=device)
    of_chosen, ids, values = top_logprobs(logits, chosen, n)
    truth = logits.double().log_softmax(-1)
    order = truth.sort(dim=-1, descending=True, stable=True)
    torch.testing.assert_close(of_chosen.double(), truth.gather(1, chosen[:, None])[:, 0], rtol=1e-5, atol=1e-5)
    assert ids.dtype == torch.int64
    assert torch.equal(ids, order.indices[:, :n])
    torch.testing.assert_close(values.double(), order.values[:, :n], rtol=1e-5, atol=1e-5)


def test_equal_logits_come_by_their_id(device: str) -> None:
    logits = torch.zeros(1, 500, device=device)
    logits[0, [400, 30]] = 2.0
    assert top_logprobs(logits, torch.tensor([0], device=device), 5)[1].tolist() == [[30, 400, 0, 1, 2]]


def test_forbidden_tokens_have_no_probability(device: str) -> None:
    logits = torch.full((1, 300), float("-inf"), device=device)
    logits[0, [7, 200]] = torch.tensor([1.0, 2.0], device=device)
    of_chosen, ids, values = top_logprobs(logits, torch.tensor([9], device=device), 4)
    assert of_chosen.item() == float("-inf")
    assert ids[0, :2].tolist() == [200, 7]
    torch.testing.assert_close(values[0, :2].exp().sum().item(), 1.0)
    assert (values[0, 2:] == float("-inf")).all()


def test_wrong_arguments_are_named() -> None:
    logits, chosen = torch.zeros(2, 9), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="logits"):
        top_logprobs(logits[0], chosen, 1)
    with pytest.raises(ValueError, match="chosen"):
        top_logprobs(logits, chosen.int(), 1)
    with pytest.raises(ValueError, match="n is"):
        top_logprobs(logits, chosen, 10)
