"""Products in a fixed order: right, and the same bits for a row whatever the size of the batch."""

import pytest
import torch
from torch import Tensor

from kernels import dispatch
from kernels.fixed_linear import fixed_linear
from tests.kernels.close import Close


def operands(T: int, E: int, F: int, device: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    made = torch.randn(T, E) / E**0.5, torch.randn(F, E), torch.randn(F)
    x, weight, bias = (tensor.to(dtype).to(device) for tensor in made)
    return x, weight, bias


@pytest.mark.parametrize(("T", "E", "F"), [(1, 64, 128), (5, 40, 67), (17, 96, 130)])
def test_it_multiplies_and_adds_the_bias(device: str, close: Close, T: int, E: int, F: int) -> None:
    x, weight, bias = operands(T, E, F, device)
    close(fixed_linear(x, weight, bias), x.double() @ weight.double().T + bias.double())
    out = torch.full((T, F), float("nan"), device=device)
    assert fixed_linear(x, weight, out=out) is out
    close(out, x.double() @ weight.double().T)


def test_a_row_cut_out_of_a_wider_one_is_read_in_place(device: str, close: Close) -> None:
    x, weight, _ = operands(6, 128, 48, device)
    close(fixed_linear(x[:, 32:96], weight[:, :64].contiguous()), x[:, 32:96].double() @ weight[:, :64].double().T)


def test_a_row_has_the_same_bits_among_any_number_of_others(device: str) -> None:
    x, weight, bias = operands(40, 96, 80, device)
    whole = fixed_linear(x, weight, bias)
    for begin, end in ((0, 1), (39, 40), (3, 20), (7, 40)):
        if dispatch.form(x) == "triton":
            assert torch.equal(fixed_linear(x[begin:end], weight, bias), whole[begin:end])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("E", "F"), [(4096, 6144), (576, 1536), (1000, 2050)])
def test_tiles_of_every_size_give_the_same_bits_in_16_bits(close: Close, E: int, F: int) -> None:
    x, weight, bias = operands(2100, E, F, "cuda", torch.bfloat16)
    out = torch.empty(2100, F, device="cuda")
    whole = fixed_linear(x, weight, bias, out)
    close(whole.bfloat16(), (x.double() @ weight.double().T + bias.double()).cpu())
    for begin, end in ((0, 1), (2099, 2100), (100, 116), (30, 94), (77, 400), (5, 1000)):
        part = fixed_linear(x[begin:end], weight, bias, torch.empty(end - begin, F, device="cuda"))
        assert torch.equal(part, whole[begin:end]), (begin, end)


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="weight"):
        fixed_linear(torch.zeros(2, 3), torch.zeros(4, 5))
    with pytest.raises(ValueError, match="bias"):
        fixed_linear(torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(3))
    with pytest.raises(ValueError, match="out"):
        fixed_linear(torch.zeros(2, 3), torch.zeros(4, 3), out=torch.zeros(2, 3))
