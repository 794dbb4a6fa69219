import pytest
import torch

from kernels import dispatch
from kernels.expert_sum import expert_add, expert_sum
from kernels.few_rows import RmsNormWeights
from tests.kernels.close import Close


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("T", "C", "E"), [(1, 2, 64), (13, 4, 1500), (5, 8, 33), (0, 2, 16)])
def test_parts_are_weighed_and_added(device: str, close: Close, dtype: torch.dtype, T: int, C: int, E: int) -> None:
    parts = torch.randn(T * C, E, device=device, dtype=dtype)
    places = torch.randperm(T * C, dtype=torch.int32).view(T, C).to(device)
    shares = torch.rand(T, C, device=device)
    truth = (parts.cpu().double()[places.cpu().long()] * shares.cpu().double()[..., None]).sum(1)
    close(expert_sum(parts, places, shares), truth)


@pytest.mark.parametrize(("T", "C", "E"), [(1, 2, 64), (7, 3, 1500)])
def test_parts_are_added_to_a_sum_whose_norm_is_begun(device: str, close: Close, T: int, C: int, E: int) -> None:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    parts, before = torch.randn(T * C, E, device=device, dtype=dtype), torch.randn(T, E, device=device, dtype=dtype)
    places = torch.randperm(T * C, dtype=torch.int32).view(T, C).to(device)
    shares, norm = torch.rand(T, C, device=device), RmsNormWeights(torch.rand(E, device=device, dtype=dtype), 1e-5, 0.5)
    total = before.clone()
    begun = expert_add(parts, places, shares, total, norm)
    added = (parts.cpu().double()[places.cpu().long()] * shares.cpu().double()[..., None]).sum(1)
    close(total, before.cpu().double() + added)
    assert (begun is not None) == (T > 1 and dispatch.form(parts) == "triton")
    if begun is not None:
        wide = total.cpu().double()
        close(begun.scaled, wide * (norm.weight.cpu().double() + 0.5))
        close(begun.squares.sum(0), wide.square().sum(1), loose=3)


def test_shares_must_fit_places(device: str) -> None:
    with pytest.raises(ValueError, match="places"):
        expert_sum(torch.empty(4, 8, device=device), torch.zeros(2, 2, dtype=torch.int32), torch.zeros(2, 3))
