"""Which weights stay packed on a GPU; how they multiply is tested with the kernels and with whole models."""

import pytest
import torch
from torch.nn import functional

from model_svc.quant.grouped import Grouped
from model_svc.weights.stored.grouped_tensor import GroupedTensor


@pytest.mark.parametrize(("group", "packed"), [(2, False), (32, True)])
def test_a_weight_stays_packed_where_its_scales_leave_it_smaller_than_its_numbers(group: int, packed: bool) -> None:
    codes = torch.randint(0, 256, (64, 512), dtype=torch.uint8)
    tensor = GroupedTensor(codes, torch.rand(64, 1024 // group).half(), 8, bits=4)
    method = Grouped(torch.float16, torch.device("cpu"))
    op = method.linear([tensor], None)
    numbers = 64 * 1024 * method.dtype.itemsize
    assert (method.num_bytes < numbers) is packed
    x = torch.randn(3, 1024).to(method.dtype)
    torch.testing.assert_close(op(x), functional.linear(x, tensor.piece(slice(None)).to(method.dtype)))
