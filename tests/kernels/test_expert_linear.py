import pytest
import torch
from torch import Tensor

from kernels import activation, dispatch
from kernels.expert_linear import expert_linear
from kernels.expert_order import ExpertOrder, expert_order
from kernels.route import Routes
from tests.kernels.close import Close


def ordered(device: str, T: int, X: int, C: int, *, unused: int = 0) -> tuple[ExpertOrder, Tensor]:
    """Return an order in which the first `unused` experts have nobody, and the expert of each place."""
    chosen = (torch.rand(T, X - unused).argsort(1)[:, :C] + unused).int().contiguous()
    order = expert_order(Routes(chosen.to(device), torch.rand(T, C, device=device)), X)
    return order, chosen.flatten().long().sort().values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("T", "X", "C", "E", "F"), [(1, 8, 2, 64, 48), (45, 3, 2, 40, 70), (9, 60, 4, 96, 33)])
def test_each_token_meets_the_weight_of_its_experts(
    device: str, close: Close, dtype: torch.dtype, T: int, X: int, C: int, E: int, F: int
) -> None:
    order, expert = ordered(device, T, X, C, unused=1)
    x = torch.randn(T, E + 8, device=device, dtype=dtype)[:, :E]
    weight = torch.randn(X, F, E, device=device, dtype=dtype)
    rows = order.rows.cpu().long()
    truth = torch.einsum("pe,pfe->pf", x.cpu().double()[rows], weight.cpu().double()[expert])
    close(expert_linear(x, weight, order, gather=True), truth)
    taken = x[order.rows.long()].contiguous()
    close(expert_linear(taken, weight, order, gather=False), truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("T", "X", "C", "E", "F"), [(1, 8, 2, 64, 48), (45, 3, 2, 40, 70)])
def test_each_experts_bias_is_added_to_its_tokens(
    device: str, close: Close, dtype: torch.dtype, T: int, X: int, C: int, E: int, F: int
) -> None:
    order, expert = ordered(device, T, X, C, unused=1)
    x, weight, bias = (torch.randn(shape, device=device, dtype=dtype) for shape in ((T, E), (X, F, E), (X, F)))
    taken = x.cpu().double()[order.rows.cpu().long()]
    truth = torch.einsum("pe,pfe->pf", taken, weight.cpu().double()[expert]) + bias.cpu().double()[expert]
    close(expert_linear(x, weight, order, bias, gather=True), truth)


@pytest.mark.parametrize(("T", "X", "C", "E", "F"), [(3, 8, 2, 40, 74), (49, 3, 2, 32, 70)])
@pytest.mark.parametrize("act", [activation.SILU, activation.CLAMPED])
def test_gates_and_ups_meet_behind_their_product(
    device: str, close: Close, T: int, X: int, C: int, E: int, F: int, act: int
) -> None:
    order, expert = ordered(device, T, X, C, unused=1)
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    x, weight, bias = (torch.randn(shape, device=device, dtype=kind) for shape in ((T, E), (X, F, E), (X, F)))
    taken = x.cpu().double()[order.rows.cpu().long()]
    truth = torch.einsum("pe,pfe->pf", taken, weight.cpu().double()[expert]) + bias.cpu().double()[expert]
    close(expert_linear(x, weight, order, bias, gather=True, act=act), activation.reference(truth, act), loose=2)


def test_in_a_fixed_order_a_tokens_bits_do_not_depend_on_the_others(device: str) -> None:
    if device == "cpu" and dispatch.form(torch.empty(0)) != "triton":
        pytest.skip("libraries choose their order by size")
    chosen = torch.randint(0, 3, (40, 1), dtype=torch.int32)
    x, weight = torch.randn(40, 96, device=device), torch.randn(3, 20, 96, device=device)

    def run(some: slice) -> Tensor:
        order = expert_order(Routes(chosen[some].contiguous().to(device), torch.rand(1, device=device)), 3)
        return expert_linear(x[some], weight, order, gather=True)[order.places.flatten().long()]

    with dispatch.fixed_order():
        assert torch.equal(run(slice(0, 40))[17], run(slice(17, 18))[0])


def test_what_does_not_fit_is_named(device: str) -> None:
    order, _ = ordered(device, 4, 3, 2)
    with pytest.raises(ValueError, match="weight has shape"):
        expert_linear(torch.empty(4, 8, device=device), torch.empty(2, 8, 8, device=device), order, gather=True)
    with pytest.raises(ValueError, match="bias has shape"):
        expert_linear(
            torch.empty(4, 8, device=device), torch.empty(3, 8, 8, device=device), order,
            torch.empty(2, 8, device=device), gather=True,
        )  # fmt: skip
    with pytest.raises(ValueError, match="x has shape"):
        expert_linear(torch.empty(4, 8, device=device), torch.empty(3, 8, 8, device=device), order, gather=False)
