"""What only the C form has: bits that depend neither on the batch nor on how a prompt was cut, shared splits, float16
keys and values beside float32 queries, heads before tokens in a block."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.native import record
from kernels.native.library import set_threads
from kernels.paged_attention import paged_attention, reference
from kernels.rope import rope_store_kv
from kernels.store_kv import store_kv
from tests.kernels.close import Close

B = 16


def _case(
    lengths: list[int], queries: list[int], H: int = 6, K: int = 2, D: int = 64, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    blocks = sum(-(-n // B) for n in lengths)
    cache = torch.randn(2, blocks + 1, K, B, D).to(dtype).transpose(2, 3)
    order = torch.randperm(blocks) + 1
    tables = torch.full((len(lengths), max(-(-n // B) for n in lengths)), -7, dtype=torch.int32)
    at = 0
    for s, n in enumerate(lengths):
        used = -(-n // B)
        tables[s, :used] = order[at : at + used]
        at += used
    start = torch.tensor([0, *torch.tensor(queries).cumsum(0)], dtype=torch.int32)
    return torch.randn(sum(queries), H, D), cache[0], cache[1], tables, start, torch.tensor(lengths, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("H", "K", "D"), [(9, 3, 64), (4, 4, 128), (8, 1, 256), (14, 2, 72), (5, 5, 40), (6, 2, 512)])
@pytest.mark.parametrize("options", [{}, {"window": 50}, {"softcap": 20.0}, {"sinks": True}], ids=str)
def test_a_mixed_batch_equals_the_reference_in_float64(
    isa: str, close: Close, H: int, K: int, D: int, options: dict[str, Any], dtype: torch.dtype
) -> None:
    case = _case([1, 100, 70, 600], [1, 100, 1, 3], H, K, D, dtype)
    options = {**options, "sinks": torch.randn(H)} if "sinks" in options else options
    wide = tuple(item.double() if item.is_floating_point() else item for item in case)
    truth = reference(*wide, scale=0.1, **options)
    close(paged_attention(*case, scale=0.1, **options), truth, loose=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("window", [None, 300])
def test_bits_depend_neither_on_the_batch_nor_on_how_a_prompt_is_cut(
    isa: str, window: int | None, dtype: torch.dtype
) -> None:
    q, keys, values, tables, start, lens = _case([1300], [1300], dtype=dtype)
    whole = paged_attention(q, keys, values, tables, start, lens, scale=0.1, window=window)
    for first, last in ((0, 700), (700, 1299), (1299, 1300)):
        begin = torch.tensor([0, last - first], dtype=torch.int32)
        context = torch.tensor([last], dtype=torch.int32)
        part = paged_attention(q[first:last], keys, values, tables, begin, context, scale=0.1, window=window)
        assert torch.equal(part, whole[first:last])


@pytest.mark.parametrize("window", [None, 700])
def test_shared_splits_give_the_same_bits(isa: str, window: int | None) -> None:
    q, keys, values, tables, start, lens = _case([2100], [1])
    results = []
    for threads, longest in ((1, None), (8, 1)):  # few threads take the context as one item, many share its splits
        set_threads(threads)
        results.append(
            paged_attention(q, keys, values, tables, start, lens, scale=0.1, window=window, max_query_len=longest)
        )
    set_threads(None)
    assert torch.equal(*results)


def test_a_sequence_without_context_gives_zeros(isa: str) -> None:
    q, keys, values, tables, start, _ = _case([5], [1])
    assert not paged_attention(q, keys, values, tables, start, torch.zeros(1, dtype=torch.int32), scale=1.0).any()


def test_a_head_that_the_c_form_cannot_hold_takes_the_reference_and_no_tape(isa: str, close: Close) -> None:
    case = _case([40], [40], H=2, K=2, D=520)
    wide = tuple(item.double() if item.is_floating_point() else item for item in case)
    close(paged_attention(*case, scale=0.1), reference(*wide, scale=0.1))
    assert record.recorder is None


def test_a_float16_cache_stores_what_torch_rounds_to(isa: str) -> None:
    """Ties, subnormals, what overflows, infinities and NaN, with odd widths and no rotation."""
    values = torch.randn(300, 1, 37) * torch.logspace(-9, 5, 300).view(-1, 1, 1)
    values[:4, 0, 0] = torch.tensor([2049.0, 65519.99, float("inf"), float("nan")])
    k_cache, v_cache = torch.zeros(2, 20, B, 1, 37, dtype=torch.float16)
    store_kv(values, -values, k_cache, v_cache, torch.arange(300))
    want = values.half()
    for cache, expected in ((k_cache, want), (v_cache, -want)):
        torch.testing.assert_close(cache.view(-1, 1, 37)[:300], expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotated_keys_are_rounded_once(isa: str, interleaved: bool) -> None:
    q, k, v = torch.randn(3, 4, 80), torch.randn(3, 2, 80), torch.randn(3, 2, 80)
    angles, positions, slots = torch.randn(9, 30), torch.tensor([8, 0, 4]), torch.tensor([7, -1, 33])
    wide, narrow = torch.zeros(2, 3, B, 2, 80), torch.zeros(2, 3, B, 2, 80, dtype=torch.float16)
    for cache in (wide, narrow):
        tables = angles.cos(), angles.sin(), positions
        rope_store_kv(q.clone(), k, v, *tables, cache[0], cache[1], slots, interleaved=interleaved)
    assert torch.equal(narrow, wide.half())
