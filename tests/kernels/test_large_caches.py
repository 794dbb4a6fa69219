"""Blocks that begin behind 2^31 elements, as an 80 GB card's cache has them: 32 bits cannot hold their places.

The caches are zeros that nobody has touched: on a CPU they take no memory but for the pages that are used.
"""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels import dispatch
from kernels.few_rows_attention import few_rows_attention
from kernels.kv_copy import gather_blocks, scatter_blocks
from kernels.paged_attention import paged_attention
from kernels.rope import rope_store_kv
from kernels.store_kv import store_kv

B, K, D, G = 16, 2, 64, 2
N = (1 << 31) // (B * K * D) + 8
BLOCKS = [N - 1, 3, N - 6, N - 3]  # of one sequence
DTYPE = torch.float16
Pair = tuple[Tensor, Tensor]  # keys and values
Caches = tuple[Pair, Pair]


def zeros(*shape: int, device: str) -> Tensor:
    if device == "cuda":
        return torch.zeros(shape, dtype=DTYPE, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape), dtype=np.float16)).view(shape)


@pytest.fixture
def caches(device: str) -> Caches:
    """Keys and values of a cache that is large, and of one with the same blocks that is not."""
    # As much again lies before them, so that places cut to 32 bits are wrong and not a crash.
    large = zeros(2 * N, B, K, D, device=device)[N:], zeros(2 * N, B, K, D, device=device)[N:]
    keys, values = torch.randn(2, len(BLOCKS), B, K, D, dtype=DTYPE, device=device)
    small = keys, values
    for cache, few in zip(large, small, strict=True):
        for n, block in enumerate(BLOCKS):
            cache[block] = few[n]
    return large, small


def tables(blocks: Sequence[int], device: str) -> Tensor:
    return torch.tensor([blocks], dtype=torch.int32, device=device)


@pytest.mark.parametrize("n", [1, 40])
def test_attention_reads_them(device: str, caches: Caches, n: int) -> None:
    large, small = caches
    context = B * len(BLOCKS) - 3
    q = torch.randn(n, K * G, D, dtype=DTYPE, device=device)
    start, length = (torch.tensor(ids, dtype=torch.int32, device=device) for ids in ([0, n], [context]))
    found = [
        paged_attention(q, *cache, tables(blocks, device), start, length, scale=0.1)
        for cache, blocks in ((large, BLOCKS), (small, range(len(BLOCKS))))
    ]
    assert torch.equal(*found)
    assert bool(found[0].any())


def test_few_rows_read_them(device: str, caches: Caches) -> None:
    large, small = caches
    context = torch.tensor([B * len(BLOCKS) - 3], dtype=torch.int32, device=device)
    qkv = torch.randn(1, (K * G + 2 * K) * D, dtype=DTYPE, device=device)
    arrived = torch.zeros(K, dtype=torch.int32, device=device)
    if device == "cpu" and dispatch.form(qkv) != "triton":
        pytest.skip("the reference copies the cache")
    found = [
        few_rows_attention(qkv, *cache, tables(blocks, device), context, 0.1, arrived)
        for cache, blocks in ((large, BLOCKS), (small, range(len(BLOCKS))))
    ]
    assert torch.equal(*found)
    assert bool(found[0].any())


@pytest.mark.parametrize("rotated", [False, True])
def test_keys_and_values_are_stored_there(device: str, caches: Caches, rotated: bool) -> None:
    large, small = caches
    T = 3
    q, k, v = (torch.randn(T, heads, D, dtype=DTYPE, device=device) for heads in (K * G, K, K))
    for pair, blocks in ((large, BLOCKS), (small, range(len(BLOCKS)))):
        slots = torch.tensor([blocks[0] * B + 5, -1, blocks[3] * B], device=device)
        if rotated:
            angles = torch.arange(8, device=device)[:, None] * torch.logspace(0, -3, D // 2, device=device)
            rope_store_kv(q.clone(), k, v, angles.cos(), angles.sin(), torch.arange(T, device=device), *pair, slots)
        else:
            store_kv(k, v, *pair, slots)
    for cache, few in zip(large, small, strict=True):
        for n, block in enumerate(BLOCKS):
            assert torch.equal(cache[block], few[n])


def test_blocks_are_moved_there(device: str, caches: Caches) -> None:
    large, small = caches
    ids = torch.tensor(BLOCKS, device=device)
    for cache, few in zip(large, small, strict=True):
        assert torch.equal(gather_blocks(cache, ids), few)
        scatter_blocks(few.flip(0), cache, ids)
        assert torch.equal(cache[ids], few.flip(0))
