"""The product of one or a few rows against its formula."""

import pytest
import torch

from kernels.gemv import linear
from tests.kernels.close import Close


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("T", "E", "F"), [(1, 576, 130), (1, 5000, 33), (1, 64, 601), (3, 96, 40), (0, 8, 8)])
def test_product_equals_its_formula(device: str, close: Close, T: int, E: int, F: int, bias: bool) -> None:
    x, weight = torch.randn(T, E, device=device), torch.randn(F, E, device=device)
    b = torch.randn(F, device=device) if bias else None
    truth = x.cpu().double() @ weight.cpu().double().T + (b.cpu().double() if b is not None else 0)
    close(linear(x, weight, b), truth)


def test_a_row_cut_out_of_a_wider_one_is_read_in_place(device: str, close: Close) -> None:
    wide, weight = torch.randn(1, 200, device=device), torch.randn(50, 64, device=device)
    close(linear(wide[:, 10:74], weight), wide[:, 10:74].cpu().double() @ weight.cpu().double().T)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="weight"):
        linear(torch.zeros(1, 8), torch.zeros(4, 9))
    with pytest.raises(ValueError, match="bias"):
        linear(torch.zeros(1, 8), torch.zeros(4, 8), torch.zeros(5))
