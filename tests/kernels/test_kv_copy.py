"""Blocks are gathered from a cache and scattered into one, in order and without touching others."""

import pytest
import torch
from torch import Tensor

from kernels.kv_copy import gather_blocks, scatter_blocks


@pytest.fixture
def cache(device: str) -> Tensor:
    """Blocks of every other layer's tensor: strided between blocks, dense inside."""
    return torch.randn(7, 2, 4, 3, 80, device=device)[:, 1]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_blocks_are_gathered_in_the_order_of_their_ids(device: str, cache: Tensor, dtype: torch.dtype) -> None:
    ids = torch.tensor([6, 0, 3, 3], dtype=dtype, device=device)
    assert torch.equal(gather_blocks(cache, ids), cache[ids.long()])
    out = torch.full((4, 4, 3, 80), float("nan"), device=device)
    assert gather_blocks(cache, ids, out) is out
    assert torch.equal(out, cache[ids.long()])


def test_what_was_gathered_can_be_scattered_elsewhere_and_the_rest_stays(device: str, cache: Tensor) -> None:
    before = cache.clone()
    scatter_blocks(
        gather_blocks(cache, torch.tensor([1, 2], device=device)), cache, torch.tensor([5, 0], device=device)
    )
    assert torch.equal(cache[[5, 0]], before[[1, 2]])
    assert torch.equal(cache[[1, 2, 3, 4, 6]], before[[1, 2, 3, 4, 6]])


def test_blocks_may_lie_apart_where_they_go_and_where_they_come_from(device: str, cache: Tensor) -> None:
    rows = torch.full((5, 16 + 4 * 3 * 80 * 4), 9, dtype=torch.uint8, device=device)  # bytes, as other copies see them
    parts = rows[:3, 8:-8].view(torch.float32).view(3, 4, 3, 80)
    ids = torch.tensor([6, 0, 3], device=device)
    assert torch.equal(gather_blocks(cache, ids, parts), cache[ids])
    assert (rows[:3, :8] == 9).all() and (rows[:3, -8:] == 9).all() and (rows[3:] == 9).all()
    before = cache.clone()
    scatter_blocks(parts, cache, ids.flip(0))
    assert torch.equal(cache[ids.flip(0)], before[ids])


def test_nothing_to_move_is_fine(device: str, cache: Tensor) -> None:
    none = torch.empty(0, dtype=torch.int64, device=device)
    assert gather_blocks(cache, none).shape == (0, 4, 3, 80)


def test_wrong_arguments_are_named() -> None:
    cache, ids = torch.zeros(4, 2, 8), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="block_ids"):
        gather_blocks(cache, ids.float())
    with pytest.raises(ValueError, match="out"):
        gather_blocks(cache, ids, torch.zeros(3, 2, 8))
    with pytest.raises(ValueError, match="out"):
        gather_blocks(cache, ids, torch.zeros(2, 8, 2).transpose(1, 2))
    with pytest.raises(ValueError, match="source"):
        scatter_blocks(torch.zeros(1, 2, 8), cache, ids)
    with pytest.raises(ValueError, match="cache"):
        gather_blocks(cache.transpose(1, 2), ids)
