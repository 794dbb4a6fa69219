"""Products with experts whose weights stay 4 bit floats, beside the numbers that the format's own table gives."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from kernels import activation, dispatch
from kernels.expert_order import expert_order
from kernels.float4_expert_linear import float4_expert_linear
from kernels.float4_experts import Float4Experts
from kernels.route import Routes
from tests.kernels.close import Close
from tests.kernels.test_expert_linear import ordered

NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def skip_if_interpreted(device: str, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and device == "cpu" and dispatch.form(torch.empty(0)) == "triton":
        pytest.skip("the interpreter multiplies no bfloat16")


class Floats(NamedTuple):
    """Random codes [F, E], the magnitude below the sign, and exponents [F, E / 32]."""

    codes: Tensor
    exponents: Tensor

    @property
    def numbers(self) -> Tensor:
        """What they stand for, float64 [F, E]."""
        numbers = torch.tensor((*NUMBERS, *(-n for n in NUMBERS)), dtype=torch.float64)[self.codes.long()]
        return numbers * torch.exp2(self.exponents.double() - 127).repeat_interleave(32, 1)


def floats(F: int, E: int, *, least: int = 118, most: int = 124) -> Floats:
    """Draw some."""
    return Floats(
        torch.randint(0, 16, (F, E), dtype=torch.uint8), torch.randint(least, most, (F, E // 32), dtype=torch.uint8)
    )


def made(device: str, X: int, F: int, E: int) -> tuple[Float4Experts, Tensor]:
    """Return weights, each expert's filled in two parts, and their numbers."""
    each = [floats(F, E) for _ in range(X)]
    weight = Float4Experts.empty(X, F, E, device)
    for expert, (codes, exponents) in enumerate(each):
        for rows in (slice(F // 3), slice(F // 3, F)):
            weight.fill(expert, rows.start or 0, codes[rows].to(device), exponents[rows].to(device))
    return weight, torch.stack([one.numbers for one in each])


@pytest.mark.parametrize("E", [32, 128, 160, 288])
def test_all_codes_and_scales_come_back_as_their_numbers(E: int) -> None:
    some = floats(48, E, least=0, most=129)
    weight = Float4Experts.empty(1, 48, E, "cpu")
    weight.fill(0, 0, *some)
    assert torch.equal(weight.reference(0, torch.float32).double(), some.numbers)
    assert torch.equal(weight.reference(0, torch.bfloat16).double(), some.numbers)


def test_scales_beyond_those_that_a_kernel_takes_are_told() -> None:
    weight, some = Float4Experts.empty(2, 3, 64, "cpu"), floats(3, 64)
    some.exponents[1, 1] = 128
    weight.fill(0, 0, *some)
    assert weight.fit
    some.exponents[1, 1] = 129
    weight.fill(1, 0, *some)
    weight.fill(0, 0, *floats(3, 64))
    assert not weight.fit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("T", "X", "C", "E", "F"), [(1, 8, 2, 64, 48), (45, 3, 2, 160, 70), (9, 20, 4, 128, 33)])
def test_each_token_meets_the_weight_of_its_experts(
    device: str, close: Close, dtype: torch.dtype, T: int, X: int, C: int, E: int, F: int
) -> None:
    skip_if_interpreted(device, dtype)
    order, expert = ordered(device, T, X, C, unused=1)
    x = torch.randn(T, E + 8, device=device, dtype=dtype)[:, :E]
    weight, numbers = made(device, X, F, E)
    truth = torch.einsum("pe,pfe->pf", x.cpu().double()[order.rows.cpu().long()], numbers[expert])
    close(float4_expert_linear(x, weight, order, gather=True), truth)
    taken = x[order.rows.long()].contiguous()
    bias = torch.randn(X, F, device=device, dtype=dtype)
    close(float4_expert_linear(taken, weight, order, bias, gather=False), truth + bias.cpu().double()[expert])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_each_code_becomes_its_number_exactly(device: str, dtype: torch.dtype) -> None:
    """Unit vectors take single weights out; these numbers lose nothing in float16 either."""
    skip_if_interpreted(device, dtype)
    X, F, E = 2, 40, 160
    order, expert = ordered(device, E, X, 1)
    weight, numbers = made(device, X, F, E)
    out = float4_expert_linear(torch.eye(E, device=device, dtype=dtype), weight, order, gather=True)
    assert torch.equal(out.cpu().double(), numbers[expert, :, order.rows.cpu().long()])


@pytest.mark.parametrize("T", [3, 40])
def test_gates_and_ups_meet_behind_their_product(device: str, close: Close, T: int) -> None:
    order, expert = ordered(device, T, 4, 2, unused=1)
    weight, numbers = made(device, 4, 70, 64)
    x, bias = torch.randn(T, 64, device=device).half(), torch.randn(4, 70, device=device).half()
    truth = torch.einsum("pe,pfe->pf", x.cpu().double()[order.rows.cpu().long()], numbers[expert])
    truth = activation.reference(truth + bias.cpu().double()[expert], activation.CLAMPED)
    found = float4_expert_linear(x, weight, order, bias, gather=True, act=activation.CLAMPED)
    close(found, truth, loose=2)


def test_in_a_fixed_order_a_tokens_bits_do_not_depend_on_the_others(device: str) -> None:
    if device == "cpu" and dispatch.form(torch.empty(0)) != "triton":
        pytest.skip("libraries choose their order by size")
    chosen = torch.randint(0, 3, (40, 1), dtype=torch.int32)
    x, (weight, _) = torch.randn(40, 96, device=device), made(device, 3, 20, 96)

    def run(some: slice) -> Tensor:
        order = expert_order(Routes(chosen[some].contiguous().to(device), torch.rand(1, device=device)), 3)
        return float4_expert_linear(x[some], weight, order, gather=True)[order.places.flatten().long()]

    with dispatch.fixed_order():
        assert torch.equal(run(slice(0, 40))[17], run(slice(17, 18))[0])


def test_what_does_not_fit_is_named(device: str) -> None:
    order, _ = ordered(device, 4, 3, 2)
    weight, two = (Float4Experts.empty(X, 8, 32, device) for X in (3, 2))
    x = torch.empty(4, 32, device=device)
    with pytest.raises(ValueError, match="weight has shape"):
        float4_expert_linear(x, two, order, gather=True)
    with pytest.raises(ValueError, match="bias has shape"):
        float4_expert_linear(x, weight, order, torch.empty(2, 8, device=device), gather=True)
    with pytest.raises(ValueError, match="x has shape"):
        float4_expert_linear(x, weight, order, gather=False)
    with pytest.raises(ValueError, match="no whole groups"):
        Float4Experts.empty(1, 8, 48, device)
