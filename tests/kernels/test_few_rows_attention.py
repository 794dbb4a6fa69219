"""Attention of few rows, whose newest keys come from the projection, against attention over a cache that holds them."""

import pytest
import torch

from kernels import paged_attention
from kernels.few_rows_attention import few_rows_attention
from tests.kernels.close import Close


@pytest.mark.parametrize(
    ("H", "K", "contexts"),
    [
        (8, 2, [40]), (9, 3, [33, 1, 0]), (2, 2, [1]), (8, 2, [1, 5, 64, 300]), (4, 1, [700]),
        (6, 2, [1, 300, 0, 32, 33, 270] + [7] * 14), (2, 1, [600] + [20] * 33),
        (4, 2, [700] + [40] * 11), (2, 1, [700] * 9), (2, 2, [330, 900] * 9),
    ],
)  # fmt: skip
def test_equals_attention_over_a_cache_that_holds_the_newest_row(
    device: str, close: Close, H: int, K: int, contexts: list[int]
) -> None:
    D, B, T = 32, 16, len(contexts)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    width = -(-max(contexts) // B)
    caches = torch.randn(2, T * width + 1, B, K, D, device=device, dtype=dtype)
    tables = torch.randperm(T * width, device=device).int().view(T, width)
    lens = torch.tensor(contexts, dtype=torch.int32, device=device)
    qkv = torch.randn(T, (H + 2 * K) * D, device=device, dtype=dtype)
    arrived = torch.zeros(T * K, dtype=torch.int32, device=device)
    full = caches.double().cpu()
    rows = [n for n, context in enumerate(contexts) if context]
    for n in rows:  # what lies behind the newest position must not matter; nor there, up to 8 rows
        block, offset = int(tables[n, (contexts[n] - 1) // B]), (contexts[n] - 1) % B
        for cache, wide, part in zip(caches, full, qkv[n].view(-1, D)[H:].split(K), strict=True):
            cache[block, offset:] = float("nan")
            if T > 8:
                cache[block, offset] = part
            wide[block, offset] = part.double().cpu()
    out = few_rows_attention(qkv, caches[0], caches[1], tables, lens, 0.3, arrived)
    start = torch.arange(T + 1, dtype=torch.int32)
    truth = paged_attention.reference(
        qkv.double().cpu().view(T, -1, D)[:, :H], full[0], full[1], tables.cpu(), start, lens.cpu(), scale=0.3
    )
    close(out[rows], truth.view(T, -1)[rows], loose=2)
    assert not arrived.any()


def test_wrong_arguments_are_named() -> None:
    cache = torch.zeros(2, 4, 2, 8)
    tables, lens, arrived = torch.zeros(1, 2, dtype=torch.int32), torch.ones(1, dtype=torch.int32), torch.zeros(2).int()
    with pytest.raises(ValueError, match="qkv"):
        few_rows_attention(torch.zeros(1, 32), cache, cache, tables, lens, 1.0, arrived)
    with pytest.raises(ValueError, match="block_tables"):
        few_rows_attention(torch.zeros(2, 48), cache, cache, tables, lens, 1.0, arrived)
    with pytest.raises(ValueError, match="arrived"):
        few_rows_attention(torch.zeros(1, 48), cache, cache, tables, lens, 1.0, arrived[:1])
