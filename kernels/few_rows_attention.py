"""Decode attention for few sequences, made to overlap with the products around it (see `few_rows`).

At one sequence attention moves little and waits much. So old keys and values are fetched before the kernel waits for
this step's projection (their newest row comes from the projection itself), the context is cut into many short splits,
and the last program of a head to arrive merges them: no second kernel. It merges in the order of the splits, whoever
comes last. From 9 sequences on bandwidth counts: copies are under way in shared memory, and a split is as long as its
share of all contexts allows, as each program begins and ends for some 5 us.
"""

# mypy: disable-error-code="no-untyped-def"
import math
from typing import NamedTuple

import torch
from torch import Tensor

from kernels import dependent, dispatch, paged_attention
from kernels.attention_step import HIDDEN, score, update
from kernels.code_attention import CODES_D, attend_codes
from kernels.float8_kv import ONES, KvScales, beside_codes, bits, rounded, stored, widened
from kernels.language import TRITON_INSTALLED, jit, next_power_of_2, tl

if TRITON_INSTALLED:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

MAX_ROWS = 64
_LOG2_E = math.log2(math.e)


class _Plan(NamedTuple):
    """How contexts are cut: tiles of `keys`, at most `splits` parts of `least` tiles or more; `ahead` as above.

    All rows together are cut in about `parts` for each processor (0: only what is above counts).
    """

    ahead: bool
    keys: int
    warps: int
    splits: int
    least: int
    parts: int


def _plan(T: int, itemsize: int = 2) -> _Plan:
    # With 8 KV heads one sequence in 16 parts fills the card; a merge of more does not fit the registers. Short tiles,
    # so that at a context of 400 one row has a program for every processor.
    if T <= 8:
        return _Plan(ahead=True, keys=32, warps=2, splits=16, least=1, parts=0)
    # Two programs fit a processor, and twice as many splits as that even out.
    keys = 64 if itemsize > 1 else 128  # of a cache in 8 bits twice as many are as much to have on the way
    splits = 16 if T <= 16 else 8 if T <= 32 else 4
    return _Plan(ahead=False, keys=keys, warps=4, splits=splits, least=256 // keys, parts=4)


def few_rows_attention(
    qkv: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor, scale: float,
    arrived: Tensor, scales: KvScales = ONES,
) -> Tensor:  # fmt: skip
    """Return attention [T, H D] of the turned projections `qkv` [T, (H + 2K) D], one token of each sequence.

    Caches [N, B, K, D] hold what is before and this token as well. `context_lens` int32 [T] counts it.
    `arrived` int32, at least T K long, is zero before and after. `scales` are those of a float8_e4m3fn cache.
    """
    T, width = qkv.shape
    K, D = k_cache.shape[2:]
    if width % D or width <= 2 * K * D or not qkv.is_contiguous():
        raise ValueError(f"qkv has shape {tuple(qkv.shape)}; it must be contiguous [T, (H + 2 * {K}) * {D}]")
    if block_tables.shape[0] != T or context_lens.shape != (T,):
        raise ValueError(f"block_tables {tuple(block_tables.shape)} and context_lens must have {T} rows")
    if arrived.numel() < T * K or arrived.dtype != torch.int32:
        raise ValueError(f"arrived has {arrived.numel()} elements; it must be int32 with {T * K}")
    out = qkv.new_empty(T, width - 2 * K * D)
    if dispatch.form(qkv) == "triton" and T:
        _launch(qkv, k_cache, v_cache, block_tables, context_lens, scale, arrived, scales, out)
        return out
    return reference(qkv, k_cache, v_cache, block_tables, context_lens, scale, scales)


def reference(
    qkv: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor, scale: float,
    scales: KvScales = ONES,
) -> Tensor:  # fmt: skip
    """Put the newest row into a copy of the cache and attend in plain torch."""
    T = qkv.shape[0]
    B, K, D = k_cache.shape[1:]
    heads = qkv.view(T, -1, D)
    k_cache, v_cache = k_cache.clone(), v_cache.clone()
    rows = (context_lens > 0).nonzero()[:, 0]
    last = context_lens[rows].long() - 1
    block = block_tables[rows, last // B].long()
    k_over, v_over = scales.inverse(k_cache)
    bits(k_cache)[block, last % B] = bits(rounded(heads[rows, -2 * K : -K], k_cache.dtype, k_over))
    bits(v_cache)[block, last % B] = bits(rounded(heads[rows, -K:], v_cache.dtype, v_over))
    start = torch.arange(T + 1, dtype=torch.int32, device=qkv.device)
    q = heads[:, : -2 * K]
    out = paged_attention.reference(
        q, k_cache, v_cache, block_tables, start, context_lens, scale=scale, scales=scales
    )  # fmt: skip
    return out.reshape(T, -1)


def _launch(
    qkv: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor, scale: float,
    arrived: Tensor, scales: KvScales, out: Tensor,
) -> None:  # fmt: skip
    T, width = qkv.shape
    B, K, D = k_cache.shape[1:]
    H = width // D - 2 * K
    group = next_power_of_2(H // K)
    plan = _plan(T, k_cache.element_size())
    partial = qkv.new_empty((T, K, plan.splits, group, D), dtype=torch.float32)
    state = qkv.new_empty((T, K, plan.splits, 2, group), dtype=torch.float32)
    processors = dispatch.processors(qkv, elsewhere=8)
    k_scale, v_scale = scales.of(k_cache)
    _few_rows_attention_kernel[(T * K, plan.splits)](
        qkv, k_cache, v_cache, block_tables, context_lens, partial, state, arrived, out,
        scale * k_scale * _LOG2_E, v_scale, *scales.inverse(k_cache),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2), block_tables.stride(0),
        H=H, K=K, D=D, B=B, GROUP=group, KEYS=plan.keys, SPLITS=plan.splits, LEAST=plan.least,
        PARTS=plan.parts * processors, ROWS=next_power_of_2(T), AHEAD=plan.ahead,
        # Splits that count on four programs a processor need them to fit: 128 registers a thread.
        num_warps=plan.warps, maxnreg=128 if plan.parts else None, **dependent.launch(qkv),
    )  # fmt: skip


@jit
def _few_rows_attention_kernel(
    qkv_ptr, k_cache_ptr, v_cache_ptr, tables_ptr, context_ptr, partial_ptr, state_ptr, arrived_ptr, out_ptr, unit,
    v_scale, k_over, v_over, stride_n, stride_b, stride_h, table_stride,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, B: tl.constexpr, GROUP: tl.constexpr, KEYS: tl.constexpr,
    SPLITS: tl.constexpr, LEAST: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program per (sequence, KV head) and split; of GROUP heads the first H / K are real."""
    if PDL:
        gdc_launch_dependents()
    G: tl.constexpr = H // K
    row, head, split = tl.program_id(0) // K, tl.program_id(0) % K, tl.program_id(1)
    key, d, g = tl.arange(0, KEYS), tl.arange(0, D), tl.arange(0, 16)
    context = tl.load(context_ptr + row)
    tiles = tl.cdiv(context, KEYS)
    per_split = tl.maximum(tl.cdiv(tiles, SPLITS), LEAST)
    if PARTS:
        other = tl.arange(0, ROWS)
        contexts = tl.load(context_ptr + other, mask=other < tl.num_programs(0) // K, other=0)
        per_split = tl.maximum(per_split, tl.cdiv(tl.sum(tl.cdiv(contexts, KEYS), 0) * K, PARTS))
    splits = tl.cdiv(tiles, per_split)
    begin = split * per_split
    end = tl.minimum(begin + per_split, tiles)
    table = tables_ptr + row.to(tl.int64) * table_stride
    if AHEAD:
        k, v = _fetch(
            k_cache_ptr, v_cache_ptr, table, begin * KEYS + key, context - 1, head, d, stride_n, stride_b, stride_h, B
        )
    if PDL:
        gdc_wait()
    if split < splits:
        line = qkv_ptr + row.to(tl.int64) * ((H + 2 * K) * D)
        real = (g < G)[:, None]
        q_at = line + (head * G + g) * D
        q = beside_codes(tl.load(q_at[:, None] + d[None, :], mask=real, other=0.0), k_cache_ptr)
        top, total = tl.full([16], HIDDEN, tl.float32), tl.zeros([16], tl.float32)
        acc = tl.zeros([16, D], tl.float32)
        if AHEAD:
            newest_k, newest_v = tl.load(line + (H + head) * D + d), tl.load(line + (H + K + head) * D + d)
            newest_k, newest_v = stored(newest_k, k_over, k_cache_ptr), stored(newest_v, v_over, v_cache_ptr)
            newest_k, newest_v = widened(newest_k, q.dtype), widened(newest_v, q.dtype)
            for tile in range(begin, end):
                at = tile * KEYS + key
                following_k, following_v = _fetch(
                    k_cache_ptr, v_cache_ptr, table, at + KEYS, tl.where(tile + 1 < end, context - 1, 0), head, d,
                    stride_n, stride_b, stride_h, B,
                )  # fmt: skip
                newest = (at == context - 1)[:, None]
                k, v = widened(k, q.dtype), widened(v, q.dtype)
                k, v = tl.where(newest, newest_k[None, :], k), tl.where(newest, newest_v[None, :], v)
                s = tl.where((at < context)[None, :], score(q, k, 0.0, False), HIDDEN)
                top, total, acc = update(s, v, unit, top, total, acc)
                k, v = following_k, following_v
        elif k_cache_ptr.dtype.element_ty == tl.float8e4nv and D >= CODES_D:
            k_base, v_base = k_cache_ptr + head * stride_h, v_cache_ptr + head * stride_h
            top, total, acc = attend_codes(
                q_at, g < G, k_base, v_base, table, begin, end, 0, context, context - 1 + g * 0, unit, 0.0, 0,
                stride_n, stride_b, 16, D, D, B, KEYS, 3, False, False,
            )  # fmt: skip
        else:
            for tile in tl.range(begin, end, num_stages=3):
                at = tile * KEYS + key
                k, v = _fetch(
                    k_cache_ptr, v_cache_ptr, table, at, context, head, d, stride_n, stride_b, stride_h, B
                )  # fmt: skip
                k, v = widened(k, q.dtype), widened(v, q.dtype)
                s = tl.where((at < context)[None, :], score(q, k, 0.0, False), HIDDEN)
                top, total, acc = update(s, v, unit, top, total, acc)
        if splits == 1:
            to = out_ptr + (row * H + head * G + g).to(tl.int64)[:, None] * D + d[None, :]
            tl.store(to, (acc / total[:, None] * v_scale).to(out_ptr.dtype.element_ty), mask=real)
        else:
            place = tl.program_id(0) * SPLITS + split
            kept = (g < GROUP)[:, None]
            tl.store(partial_ptr + (place * GROUP + g)[:, None] * D + d[None, :], acc, mask=kept)
            tl.store(state_ptr + place * 2 * GROUP + g, top * unit, mask=g < GROUP)
            tl.store(state_ptr + (place * 2 + 1) * GROUP + g, total, mask=g < GROUP)
            tl.debug_barrier()
            if tl.atomic_add(arrived_ptr + tl.program_id(0), 1, sem="acq_rel") == splits - 1:
                _merge(partial_ptr, state_ptr, out_ptr, row, head, splits, v_scale, H, K, D, GROUP, SPLITS)
                tl.store(arrived_ptr + tl.program_id(0), 0)


@jit
def _fetch(k_ptr, v_ptr, table, at, limit, head, d, stride_n, stride_b, stride_h, B: tl.constexpr):
    """Keys and values at positions `at` below `limit`, the others as zeros."""
    live = at < limit
    block = tl.load(table + at // B, mask=live, other=0).to(tl.int64)
    place = (block * stride_n + at % B * stride_b + head * stride_h)[:, None] + d[None, :]
    return tl.load(k_ptr + place, mask=live[:, None], other=0.0), tl.load(v_ptr + place, mask=live[:, None], other=0.0)


@jit
def _merge(
    partial_ptr, state_ptr, out_ptr, row, head, splits, v_scale, H: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    GROUP: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Add the splits of a head's group in their order; what others wrote is read past the L1 cache."""
    s, g, d = tl.arange(0, SPLITS), tl.arange(0, GROUP), tl.arange(0, D)
    place = (row * K + head) * SPLITS + s
    live = (s < splits)[:, None]
    state = state_ptr + (place * 2 * GROUP)[:, None] + g[None, :]
    top = tl.load(state, mask=live, other=-1.0e30, cache_modifier=".cg")
    total = tl.load(state + GROUP, mask=live, other=0.0, cache_modifier=".cg")
    weight = tl.where(live, tl.exp2(top - tl.max(top, 0)[None, :]), 0.0)
    weight = weight / tl.sum(weight * total, 0)[None, :]
    at = (place * GROUP)[:, None, None] + g[None, :, None]
    acc = tl.load(partial_ptr + at * D + d[None, None, :], mask=live[:, :, None], other=0.0, cache_modifier=".cg")
    y = tl.sum(acc * weight[:, :, None], 0) * v_scale
    to = out_ptr + (row * H + head * (H // K) + g).to(tl.int64)[:, None] * D + d[None, :]
    tl.store(to, y.to(out_ptr.dtype.element_ty), mask=(g < H // K)[:, None])
