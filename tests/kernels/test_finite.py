"""A number that is not finite marks its own row and no other."""

import pytest
import torch

from kernels.finite import all_finite


@pytest.mark.parametrize("width", [1, 15, 64, 1000])
def test_one_bad_number_marks_its_row_and_no_other(device: str, width: int) -> None:
    x = torch.randn(7, width + 3, device=device)[:, 3:]
    x[0] = 3e38  # finite, though a sum of it would not be
    for row, bad in ((1, "nan"), (3, "inf"), (6, "-inf")):
        x[row, torch.randint(width, ())] = float(bad)
    assert all_finite(x).tolist() == [True, False, True, False, True, True, False]
