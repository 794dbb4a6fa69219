"""Caches in 8 bits: what is stored are the nearest codes, and attention over them is that over what they mean."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import dispatch, paged_attention, prefill_attention
from kernels.few_rows import RmsNormWeights, Rotation, norm_qkv
from kernels.few_rows_attention import few_rows_attention
from kernels.float8_kv import DTYPE, ONES, KvScales, rounded
from kernels.kv_copy import gather_blocks, scatter_blocks
from kernels.rope import rope, rope_store_kv
from kernels.store_kv import store_kv
from tests.kernels.close import Close
from tests.kernels.test_paged_attention import MIXED, Batch

SCALES = KvScales(0.25, 0.03)
NAN = 0x7F


def bytes_of(x: Tensor) -> Tensor:
    return x.view(torch.uint8)


def caches(device: str, N: int, B: int, K: int, D: int) -> tuple[Tensor, Tensor]:
    both = torch.full((N, 2, B, K, D), NAN, dtype=torch.uint8, device=device).view(DTYPE)
    return both[:, 0], both[:, 1]


def half(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32  # the interpreter cannot multiply bf16


def in_8_bits(batch: Batch, dtype: torch.dtype) -> Batch:
    batch.q = batch.q.to(dtype)
    batch.k_cache, batch.v_cache = (rounded(cache * 4, DTYPE, 1.0) for cache in (batch.k_cache, batch.v_cache))
    return batch


def check(close: Close, batch: Batch, *, scale: float, loose: float = 1.0, **options: Any) -> None:
    out = batch.run(scale=scale, scales=SCALES, **options)
    close(out, batch.truth(scale=scale * SCALES.k, **options) * SCALES.v, loose=loose)
    assert torch.equal(out, batch.run(scale=scale, scales=SCALES, **options))


@pytest.mark.parametrize("scales", [ONES, SCALES])
@pytest.mark.parametrize(("K", "D"), [(1, 64), (3, 80), (8, 96)])
def test_stored_are_the_nearest_codes_and_nothing_passes_the_largest(
    device: str, K: int, D: int, scales: KvScales
) -> None:
    spread = torch.exp2(torch.randint(-12, 9, (2, 40, K, D), device=device).float())
    k, v = torch.randn(2, 40, K, D, device=device) * spread
    special = torch.tensor([0.0, 1e9, -1e9, 448.0, 449.0, -463.0, 2.0**-10, 3 * 2.0**-10, 464.0, float("inf")])
    k[0, 0, :10] = v[1, 0, :10] = special
    k[2, 0, 0] = float("nan")
    k_cache, v_cache = caches(device, 16, 4, K, D)
    slots = torch.randperm(64, device=device)[:40]
    slots[7] = -1
    store_kv(k, v, k_cache, v_cache, slots, scales)
    kept = slots >= 0
    for new, cache, over in ((k, k_cache, 1 / scales.k), (v, v_cache, 1 / scales.v)):
        truth = torch.full((64, K, D), NAN, dtype=torch.uint8, device=device)
        truth[slots[kept]] = bytes_of(rounded(new, DTYPE, over))[kept]
        held = bytes_of(cache).reshape(64, K, D)
        assert torch.equal(held & NAN == NAN, truth & NAN == NAN)
        assert torch.equal(held[truth != NAN], truth[truth != NAN])


@pytest.mark.parametrize(("H", "K", "D", "pairs"), [(4, 2, 64, 32), (3, 1, 80, 20)])
def test_turned_keys_are_stored_as_if_they_had_been_turned_before(
    device: str, H: int, K: int, D: int, pairs: int
) -> None:
    q, k, v = (torch.randn(6, heads, D, device=device) * 20 for heads in (H, K, K))
    angle, positions = torch.rand(32, pairs, device=device) * 6, torch.arange(6, device=device)
    slots = torch.tensor([3, 0, 9, -1, 11, 4], device=device)
    fused, apart = caches(device, 3, 4, K, D), caches(device, 3, 4, K, D)
    rope_store_kv(q.clone(), k, v, angle.cos(), angle.sin(), positions, *fused, slots, SCALES)
    rope(q, k, angle.cos(), angle.sin(), positions)
    store_kv(k, v, *apart, slots, SCALES)
    for one, other in zip(fused, apart, strict=True):
        assert torch.equal(bytes_of(one), bytes_of(other))


@pytest.mark.parametrize("T", [1, 5, 40])
def test_products_of_few_rows_store_codes_of_what_they_return(device: str, T: int) -> None:
    H, K, D, E = 4, 2, 16, 48
    x = torch.randn(T, E, device=device, dtype=half(device))
    norm = RmsNormWeights(torch.rand(E, device=device, dtype=x.dtype) + 0.5, 1e-5)
    weight = torch.randn((H + 2 * K) * D, E, device=device, dtype=x.dtype)
    angle, slots = torch.rand(64, D // 2, device=device) * 6, torch.randperm(64, device=device)[:T]
    positions = torch.randint(64, (T,), device=device)
    keys, values = caches(device, 16, 4, K, D)
    turn = Rotation(angle.cos(), angle.sin(), positions, keys, values, slots, SCALES)
    heads = norm_qkv(x, norm, weight, D, turn).view(T, -1, D)
    for cache, part, over in ((keys, heads[:, H : H + K], 1 / SCALES.k), (values, heads[:, H + K :], 1 / SCALES.v)):
        held = bytes_of(cache).reshape(64, K, D)[slots]
        assert torch.equal(held, bytes_of(rounded(part, DTYPE, over)))


@pytest.mark.parametrize(("H", "K", "D"), [(9, 3, 64), (2, 1, 80), (2, 1, 256)])
def test_mixed_batches_of_prefill_decode_and_drafts(device: str, close: Close, H: int, K: int, D: int) -> None:
    check(close, in_8_bits(Batch(MIXED, H, K, D, device=device), half(device)), scale=D**-0.5)


@pytest.mark.parametrize("B", [8, 24])
def test_blocks_may_have_any_size(device: str, close: Close, B: int) -> None:
    batch = in_8_bits(Batch([(1, 150), (5, 65), (70, 90)], 2, 1, 64, B=B, device=device), half(device))
    check(close, batch, scale=0.2, loose=2)


@pytest.mark.parametrize(("window", "softcap", "sinks"), [(21, None, False), (None, 5.0, True), (21, 5.0, True)])
def test_windows_soft_caps_and_sinks(
    device: str, close: Close, window: int | None, softcap: float | None, sinks: bool
) -> None:
    batch = in_8_bits(Batch([(1, 77), (3, 50), (45, 70)], 4, 2, 64, B=16, device=device), half(device))
    logits = torch.randn(4, device=device) * 3 if sinks else None
    check(close, batch, scale=0.5, window=window, softcap=softcap, sinks=logits, loose=3)


@pytest.mark.parametrize("splits", [1, 3])
def test_a_decode_cut_in_splits_is_merged(device: str, close: Close, splits: int) -> None:
    batch = in_8_bits(Batch([(1, 700), (2, 530), (1, 30)], 2, 1, 64, B=16, device=device), half(device))
    sinks = torch.randn(2, device=device)
    check(close, batch, scale=0.3, num_splits=splits, sinks=sinks, max_query_len=2, loose=2)


def test_few_queries_over_a_long_context_have_their_keys_cut(
    device: str, close: Close, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_attention, "_MIN_SPLIT_KEYS", 64)
    batch = in_8_bits(Batch([(20, 300), (40, 40), (1, 290)], 4, 2, 64, B=16, device=device), half(device))
    check(close, batch, scale=0.3, window=200, sinks=torch.randn(4, device=device), loose=2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("softcap", [None, 20.0])
@pytest.mark.parametrize("window", [None, 1, 200])
@pytest.mark.parametrize("B", [4, 16, 64])
def test_long_prefills_in_16_bits(close: Close, B: int, window: int | None, softcap: float | None, D: int) -> None:
    """On a Hopper card these take the kernel of `hopper_prefill.py`, whose copying warps widen codes."""
    lens = [(300, 300), (90, 700), (1, 40), (33, 512), (200, 2100)]
    batch = in_8_bits(Batch(lens, 6, 2, D, B=B, device="cuda"), torch.bfloat16)
    check(close, batch, scale=0.1, window=window, softcap=softcap, sinks=torch.randn(6, device="cuda"))


@pytest.mark.usefixtures("orderless")
def test_in_a_fixed_order_a_row_has_the_same_bits_however_its_prompt_is_cut(device: str) -> None:
    whole = in_8_bits(Batch([(1, 140), (150, 150)], 2, 1, 64, B=16, device=device), half(device))
    with dispatch.fixed_order():
        together = whole.run(scale=0.2, scales=SCALES)
        for begin, end in ((149, 150), (140, 150), (20, 110)):
            part = paged_attention.paged_attention(
                whole.q[1 + begin : 1 + end], whole.k_cache, whole.v_cache, whole.block_tables[1:2],
                torch.tensor([0, end - begin], dtype=torch.int32, device=device),
                torch.tensor([end], dtype=torch.int32, device=device), scale=0.2, scales=SCALES,
            )  # fmt: skip
            if dispatch.form(whole.q) == "triton":
                assert torch.equal(part, together[1 + begin : 1 + end])


@pytest.mark.parametrize(
    ("H", "K", "contexts"),
    [(9, 3, [33, 1, 0]), (8, 2, [1, 5, 64, 300]), (6, 2, [1, 300, 0, 32] + [7] * 6), (2, 1, [700] + [20] * 8)],
)
def test_attention_of_few_rows_sees_the_newest_row_as_the_cache_holds_it(
    device: str, close: Close, H: int, K: int, contexts: list[int]
) -> None:
    D, B, T = 32, 16, len(contexts)
    width = -(-max(contexts) // B)
    held = rounded(torch.randn(2, T * width + 1, B, K, D, device=device) * 4, DTYPE, 1.0)
    tables = torch.randperm(T * width, device=device).int().view(T, width)
    lens = torch.tensor(contexts, dtype=torch.int32, device=device)
    qkv = torch.randn(T, (H + 2 * K) * D, device=device, dtype=half(device))
    arrived = torch.zeros(T * K, dtype=torch.int32, device=device)
    k, v = (part.view(T, K, D) for part in qkv.view(T, -1, D)[:, H:].split(K, 1))
    last = (lens.long() - 1).clamp(min=0)
    slots = torch.where(lens > 0, tables[torch.arange(T, device=device), last // B] * B + last % B, -1)
    full = held.clone()
    store_kv(k.contiguous(), v.contiguous(), full[0], full[1], slots, SCALES)
    if T > 8:
        held = full  # up to 8 rows it need not be there yet
    out = few_rows_attention(qkv, held[0], held[1], tables, lens, 0.3, arrived, SCALES)
    start = torch.arange(T + 1, dtype=torch.int32)
    wide = full.cpu().double()
    truth = paged_attention.reference(
        qkv.double().cpu().view(T, -1, D)[:, :H], wide[0] * SCALES.k, wide[1] * SCALES.v, tables.cpu(), start,
        lens.cpu(), scale=0.3,
    )  # fmt: skip
    rows = [n for n, context in enumerate(contexts) if context]
    close(out[rows], truth.view(T, -1)[rows], loose=2)
    assert not arrived.any()


def test_blocks_are_moved_byte_by_byte(device: str) -> None:
    cache = torch.arange(6 * 24, dtype=torch.uint8, device=device).view(DTYPE).view(6, 4, 2, 3)
    ids = torch.tensor([5, 0, 3], device=device)
    blocks = gather_blocks(cache, ids)
    assert torch.equal(bytes_of(blocks), bytes_of(cache)[ids])
    other = torch.zeros_like(cache)
    scatter_blocks(blocks, other, ids)
    assert torch.equal(bytes_of(other)[ids], bytes_of(blocks))
    assert not bytes_of(other)[[1, 2, 4]].any()
