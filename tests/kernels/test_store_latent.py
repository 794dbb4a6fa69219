"""Latents land in their tokens' slots, behind them what carries the position, and nowhere else."""

import pytest
import torch

from kernels.float8_kv import DTYPE, rounded
from kernels.store_latent import store_latent


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("R", "P"), [(512, 64), (24, 6), (1, 2)])
def test_tokens_land_in_their_slots_and_nowhere_else(device: str, R: int, P: int, dtype: torch.dtype) -> None:
    row = torch.randn(5, R + P + 3, device=device)  # cut out of a wider one
    cache = torch.full((6, 4, 1, R + P), float("nan"), dtype=dtype, device=device)
    slots = [23, 0, -1, 9, 10]
    store_latent(row[:, 3 : 3 + R], row[:, 3 + R :], cache, torch.tensor(slots, device=device))
    flat = cache.view(24, R + P)
    for t, slot in enumerate(slots):
        assert slot < 0 or torch.equal(flat[slot], row[t, 3:].to(dtype))
    assert flat[[s for s in range(24) if s not in slots]].isnan().all()


def test_codes_are_divided_by_their_scale_and_end_at_the_largest(device: str) -> None:
    latent, rope = torch.randn(3, 16, device=device) * 900, torch.randn(3, 8, device=device)
    cache = torch.zeros(2, 4, 1, 24, dtype=DTYPE, device=device)
    store_latent(latent, rope, cache, torch.arange(3, device=device), 2.0)
    wanted = rounded(torch.cat((latent, rope), -1), DTYPE, 0.5)
    assert torch.equal(cache.view(8, 24)[:3].float(), wanted.float())
    assert float(cache.float().abs().max()) == 448


def test_wrong_arguments_are_named() -> None:
    latent, rope, cache, slots = (
        torch.zeros(2, 8), torch.zeros(2, 4), torch.zeros(3, 4, 1, 12), torch.zeros(2, dtype=torch.int64)
    )  # fmt: skip
    for match, args in {
        "latent .* and rope": (latent, rope[:1], cache, slots),
        "cache has shape": (latent, rope, cache[..., :8], slots),
        "slot_mapping": (latent, rope, cache, slots.int()),
        "contiguous": (latent, rope.t().contiguous().t(), cache, slots),
    }.items():
        with pytest.raises(ValueError, match=match):
            store_latent(*args)
