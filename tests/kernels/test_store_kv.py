"""Keys and values land in their tokens' slots and nowhere else."""

import pytest
import torch
from torch import Tensor

from kernels.store_kv import store_kv


def caches(device: str, K: int, D: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    both = torch.full((6, 2, 4, K, D), float("nan"), dtype=dtype, device=device)  # a block's keys beside its values
    return both[:, 0], both[:, 1]


@pytest.mark.parametrize(("K", "D"), [(1, 64), (3, 80), (8, 96), (2, 256)])
def test_tokens_land_in_their_slots_and_nowhere_else(device: str, K: int, D: int) -> None:
    k, v = (torch.randn(5, K, D, device=device) for _ in range(2))
    k_cache, v_cache = caches(device, K, D)
    slots = [23, 0, -1, 9, 10]
    store_kv(k, v, k_cache, v_cache, torch.tensor(slots, device=device))
    for new, cache in ((k, k_cache), (v, v_cache)):
        flat = cache.reshape(24, K, D)
        for t, slot in enumerate(slots):
            assert slot < 0 or torch.equal(flat[slot], new[t])
        untouched = [s for s in range(24) if s not in slots]
        assert flat[untouched].isnan().all()


def test_slices_of_a_fused_row_and_a_narrower_cache_are_taken(device: str) -> None:
    row = torch.randn(4, 10 * 64, device=device)
    k, v = row[:, 256:384].view(4, 2, 64), row[:, 384:512].view(4, 2, 64)
    k_cache, v_cache = caches(device, 2, 64, torch.float16)
    store_kv(k, v, k_cache, v_cache, torch.arange(4, 8, device=device))
    assert torch.equal(k_cache[1], k.half())
    assert torch.equal(v_cache[1], v.half())


def test_wrong_arguments_are_named() -> None:
    k, cache, slots = torch.zeros(2, 1, 8), torch.zeros(3, 4, 1, 8), torch.zeros(2, dtype=torch.int64)
    for match, args in {
        "k .* and v": (k, k[:1], cache, cache, slots),
        "k_cache": (k, k, cache[..., :4], cache[..., :4], slots),
        "v_cache": (k, k, cache, cache[:2], slots),
        "slot_mapping": (k, k, cache, cache, slots.int()),
    }.items():
        with pytest.raises(ValueError, match=match):
            store_kv(*args)
