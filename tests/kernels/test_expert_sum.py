import pytest
import torch

from kernels.expert_sum import expert_sum
from tests.kernels.close import Close


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("T", "C", "E"), [(1, 2, 64), (13, 4, 1500), (5, 8, 33), (0, 2, 16)])
def test_parts_are_weighed_and_added(device: str, close: Close, dtype: torch.dtype, T: int, C: int, E: int) -> None:
    parts = torch.randn(T * C, E, device=device, dtype=dtype)
    places = torch.randperm(T * C, dtype=torch.int32).view(T, C).to(device)
    shares = torch.rand(T, C, device=device)
    truth = (parts.cpu().double()[places.cpu().long()] * shares.cpu().double()[..., None]).sum(1)
    close(expert_sum(parts, places, shares), truth)


def test_shares_must_fit_places(device: str) -> None:
    with pytest.raises(ValueError, match="places"):
        expert_sum(torch.empty(4, 8, device=device), torch.zeros(2, 2, dtype=torch.int32), torch.zeros(2, 3))
