"""Attention over a paged cache of latents: multi-head latent attention (MLA) in its absorbed form.

The cache has a line for each token: a latent of R numbers, and P that were rotated by the token's position. All heads
share it: a head's key is the whole line, its value the latent alone. Queries come multiplied with their heads' key
matrices, and what comes out is to be multiplied with their value matrices (`head_linear`), so no key or value of a head
is ever made: a line is read once and serves the scores and the sum of G heads.

Decodes, drafts and prompts take one kernel, in tiles of few queries times G heads. Where tiles are few for the card the
keys are cut in parts, each the work of a program; the parts are added in their order.

Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.
"""

# mypy: disable-error-code="no-untyped-def"
import math
from typing import NamedTuple

import torch
from torch import Tensor

from kernels import attention_native, dispatch
from kernels.attention_reference import reference_into
from kernels.attention_step import HIDDEN, Step, update
from kernels.float8_kv import KvScales, beside_codes, widened
from kernels.language import cdiv, jit_alike, next_power_of_2, tl
from kernels.native import record
from kernels.prefill_attention import find_tile
from kernels.step_layout import check_tables

_HEADS = 16  # that share what a program reads, at most: as many rows as a tensor core takes at least
_MIN_PART_KEYS = 128


class _Tile(NamedTuple):
    """Rows of a tile, of which so many are heads of one query; keys; how Triton is to run it.

    `whole`: a tile has all queries of a sequence.
    """

    rows: int
    heads: int
    keys: int
    warps: int
    whole: bool


def latent_attention(
    q: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    cache_scale: float = 1.0,
    max_query_len: int | None = None,
    max_context_len: int | None = None,
    num_parts: int | None = None,
) -> Tensor:
    """Return the sums of latents [T, H, R] that `q` [T, H, R] and `q_rope` [T, H, P] see in `cache` [N, B, 1, R + P].

    The step is laid out as for `paged_attention`; `cache_scale` is that of a float8_e4m3fn cache. `num_parts` fixes how
    keys are cut. Rows behind query_start[S] are not written; a sequence with context 0 gives zeros.
    """
    _check(q, q_rope, cache, block_tables, query_start, context_lens)
    if scale <= 0:
        raise ValueError(f"scale is {scale}; it must be positive")
    T, S = q.shape[0], context_lens.shape[0]
    if T == 0 or S == 0:
        return torch.empty(q.shape, dtype=q.dtype, device=q.device)
    deepest = min(block_tables.shape[1] * cache.shape[1], max_context_len or 1 << 62)
    unit, _ = KvScales(cache_scale).of(cache)
    lens = (block_tables, query_start, context_lens)
    if dispatch.form(q) == "triton":
        return _launch(q, q_rope, cache, *lens, scale * unit, unit, min(T, max_query_len or T), deepest, num_parts)
    record.refuse("queries of latents are put together by torch")
    return _on_cpu(
        torch.cat((q, q_rope), -1), q.shape[2], cache, *lens, scale * unit, unit, max_query_len == 1, deepest
    )


def _on_cpu(
    lines: Tensor, R: int, cache: Tensor, tables: Tensor, query_start: Tensor, context_lens: Tensor, scale: float,
    unit: float, decodes: bool, max_context_len: int,
) -> Tensor:  # fmt: skip
    """Attend as over one KV head whose values are the beginning of its keys: by the C form where that fits, else torch.

    The C form holds so many heads at a time, and sums whole lines.
    """
    H, width = lines.shape[1:]
    at_once = max((n for n in range(1, H + 1) if H % n == 0 and attention_native.holds(n, width)), default=0)
    out = torch.empty(lines.shape, dtype=lines.dtype, device=lines.device)
    lens = (tables, query_start, context_lens)
    if dispatch.form(lines) == "native" and at_once:
        shared = cache.expand(-1, -1, H // at_once, -1)
        if attention_native.fits(lines, shared, out, None):
            step = Step(lines, shared, shared, *lens, None, out, scale, 0, 0.0)
            attention_native.run(step, max_context_len, decodes)
            return out[..., :R]
    out = out[..., :R].contiguous()
    reference_into(out, lines, cache, cache[..., :R], *lens, scale, None, None, None, unit)
    return out


def _check(
    q: Tensor, q_rope: Tensor, cache: Tensor, block_tables: Tensor, query_start: Tensor, context_lens: Tensor
) -> None:
    if q.dim() != 3 or q_rope.dim() != 3 or q_rope.shape[:2] != q.shape[:2] or q_rope.dtype != q.dtype:
        raise ValueError(f"q {tuple(q.shape)} and q_rope {tuple(q_rope.shape)} must be [T, H, R] and [T, H, P], alike")
    width = q.shape[2] + q_rope.shape[2]
    if cache.dim() != 4 or cache.shape[2:] != (1, width):
        raise ValueError(f"cache has shape {tuple(cache.shape)}; it must be [N, B, 1, {width}]")
    if q.stride(-1) != 1 or q_rope.stride(-1) != 1 or cache.stride(-1) != 1:
        raise ValueError("q, q_rope and cache must be contiguous in their last dimension")
    check_tables(block_tables, query_start, context_lens)


def _launch(
    q: Tensor, q_rope: Tensor, cache: Tensor, tables: Tensor, query_start: Tensor, context_lens: Tensor, scale: float,
    unit: float, max_query_len: int, max_context_len: int, num_parts: int | None,
) -> Tensor:  # fmt: skip
    if q.dtype == torch.bfloat16 and not q.is_cuda:
        raise ValueError("q is bfloat16: Triton's interpreter cannot multiply that; use float32 or float16")
    T, H, R = q.shape
    S, P = context_lens.shape[0], q_rope.shape[2]
    tile = _tile(H, max_query_len, q)
    # A sequence has at most n // queries + 1 tiles, so this many programs suffice whatever the lengths: no sync.
    tiles, groups = S if tile.whole else T // (tile.rows // tile.heads) + S, cdiv(H, tile.heads)
    parts = num_parts or _parts(q, tiles * groups, max_context_len)
    out = torch.empty((T, H, R), dtype=q.dtype, device=q.device)
    sums, state = out, out
    if parts > 1:
        sums = q.new_empty((parts, T, H, R), dtype=torch.float32)
        state = q.new_empty((parts, 2, T, H), dtype=torch.float32)
    _latent_kernel[(tiles, groups, parts)](
        q, q_rope, cache, tables, query_start, context_lens, out, sums, state, scale * math.log2(math.e), unit,
        q.stride(0), q.stride(1), q_rope.stride(0), q_rope.stride(1), cache.stride(0), cache.stride(1),
        tables.stride(0), S, T, H,
        R=R, P=P, BLOCK_R=max(16, next_power_of_2(R)), BLOCK_P=max(16, next_power_of_2(P)), B=cache.shape[1],
        G=tile.heads, ROWS=tile.rows, KEYS=tile.keys, PARTS=parts, MIN_TILES=cdiv(_MIN_PART_KEYS, tile.keys),
        WHOLE=tile.whole, num_warps=tile.warps,
    )  # fmt: skip
    if parts > 1:
        _merge_latents_kernel[(T, H)](
            sums, state, query_start, out, unit, S, T,
            R=R, BLOCK_R=next_power_of_2(R), PARTS=parts, num_warps=8 if parts > 16 else 4,
        )  # fmt: skip
    return out


def _tile(H: int, max_query_len: int, q: Tensor) -> _Tile:
    """16 rows for decodes, which memory bounds; as many as the longest draft needs; else all there is room for."""
    heads, most, keys = cdiv(H, cdiv(H, _HEADS)), _most_rows(q), 32 if q.element_size() == 2 else 16
    needed = max(_HEADS, next_power_of_2(max_query_len * heads))
    whole = needed <= most and not dispatch.fixed()  # there one form for all: a row's bits are its own
    rows = needed if whole else most
    return _Tile(rows, heads, keys, warps=4 if rows <= _HEADS else 8, whole=whole)


def _most_rows(q: Tensor) -> int:
    """Rows of a tile of many queries: their sums, 512 numbers each, lie in registers, all else in shared memory.

    In 16 bits 64 rows take 147 KB of an SM and 247 registers a thread (compiled for 9.0; there are 227 KB and 255), 32
    rows 76 KB, which smaller cards have, too; in 32 bits 16 rows take as much.
    """
    if q.element_size() > 2:
        return _HEADS
    return 64 if not q.is_cuda or torch.cuda.get_device_capability(q.device)[0] in (9, 10) else 32


def _parts(q: Tensor, programs: int, max_context_len: int) -> int:
    """Into how many parts to cut the keys: as many as give each processor two programs, in powers of two.

    Not in a fixed order, where the rest of the batch must not decide.
    """
    if dispatch.fixed():
        return 1
    wanted = min(2 * dispatch.processors(q, elsewhere=8) // programs, cdiv(max_context_len, _MIN_PART_KEYS), 64)
    return 1 << (max(wanted, 1).bit_length() - 1)


@jit_alike("S", "T")
def _latent_kernel(
    q_ptr, rope_ptr, cache_ptr, tables_ptr, query_start_ptr, context_ptr, out_ptr, sums_ptr, state_ptr, unit, by,
    q_stride_t, q_stride_h, rope_stride_t, rope_stride_h, stride_n, stride_b, table_stride, S, T, H,
    R: tl.constexpr, P: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr, B: tl.constexpr, G: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, PARTS: tl.constexpr, MIN_TILES: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    QUERIES: tl.constexpr = ROWS // G
    # Later queries see more keys: they start first, so that the last programs to run are the short ones.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    if WHOLE:
        sequence, i0 = tile, tile * 0
        query_start = tl.load(query_start_ptr + sequence)
        n = tl.load(query_start_ptr + sequence + 1) - query_start
        context = tl.load(context_ptr + sequence)
    else:
        sequence, query_start, n, context, i0 = find_tile(query_start_ptr, context_ptr, S, tile, QUERIES)
    stop = tl.cdiv(context - n + tl.minimum(i0 + QUERIES, n), KEYS)
    per_part = tl.maximum(tl.cdiv(stop, PARTS), MIN_TILES if PARTS > 1 else 1)
    begin = tl.program_id(2) * per_part
    end = tl.minimum(begin + per_part, stop)
    if i0 < n:
        row, r, p = tl.arange(0, ROWS), tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_P)
        i, head = i0 + row // G, tl.program_id(1) * G + row % G
        live_row = (row < QUERIES * G) & (i < n) & (head < H)
        token = (query_start + i).to(tl.int64)
        inside = live_row[:, None] & (r < R)[None, :]
        turned = live_row[:, None] & (p < P)[None, :]
        q = tl.load(q_ptr + (token * q_stride_t + head * q_stride_h)[:, None] + r[None, :], mask=inside, other=0.0)
        rope_at = rope_ptr + (token * rope_stride_t + head * rope_stride_h)[:, None] + p[None, :]
        q, q_rope = beside_codes(q, cache_ptr), beside_codes(tl.load(rope_at, mask=turned, other=0.0), cache_ptr)
        table = tables_ptr + sequence.to(tl.int64) * table_stride
        top = tl.full([ROWS], HIDDEN, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, BLOCK_R], tl.float32)
        for at in tl.range(begin, end, num_stages=2):
            key = at * KEYS + tl.arange(0, KEYS)
            live = key < context
            block = tl.load(table + key // B, mask=live, other=0).to(tl.int64)
            line = cache_ptr + (block * stride_n + (key % B) * stride_b)[:, None]
            latent = tl.load(line + r[None, :], mask=live[:, None] & (r < R)[None, :], other=0.0)
            rope = tl.load(line + R + p[None, :], mask=live[:, None] & (p < P)[None, :], other=0.0)
            latent, rope = widened(latent, q.dtype), widened(rope, q.dtype)
            s = tl.dot(q_rope, tl.trans(rope), input_precision="ieee")
            s = tl.dot(q, tl.trans(latent), s, input_precision="ieee")
            seen = live[None, :] & (key[None, :] <= (context - n + i)[:, None])
            top, total, acc = update(tl.where(seen, s, HIDDEN), latent, unit, top, total, acc)
        if PARTS == 1:
            acc = acc / tl.where(total == 0.0, 1.0, total)[:, None] * by
            to = out_ptr + ((token * H + head) * R)[:, None] + r[None, :]
            tl.store(to, acc.to(out_ptr.dtype.element_ty), mask=inside)
        else:  # a part without keys says so: its sum is never read
            part = tl.program_id(2).to(tl.int64)
            tl.store(state_ptr + (2 * part * T + token) * H + head, top * unit, mask=live_row)
            tl.store(state_ptr + ((2 * part + 1) * T + token) * H + head, total, mask=live_row)
            if begin < end:
                to = sums_ptr + (((part * T + token) * H + head) * R)[:, None] + r[None, :]
                tl.store(to, acc, mask=inside)


@jit_alike("S", "T")
def _merge_latents_kernel(
    sums_ptr, state_ptr, query_start_ptr, out_ptr, by, S, T, R: tl.constexpr, BLOCK_R: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    token, head, H = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    if token < tl.load(query_start_ptr + S):
        part, r = tl.arange(0, PARTS).to(tl.int64), tl.arange(0, BLOCK_R)
        own = token * H + head  # of T * H rows a part
        top = tl.load(state_ptr + 2 * part * T * H + own)
        total = tl.load(state_ptr + (2 * part + 1) * T * H + own)
        share = tl.where(total > 0.0, tl.exp2(top - tl.max(top, 0)), 0.0)
        inside = (share > 0.0)[:, None] & (r < R)[None, :]
        sums = tl.load(sums_ptr + ((part * T * H + own) * R)[:, None] + r[None, :], mask=inside, other=0.0)
        whole = tl.sum(share * total, 0)
        result = tl.sum(sums * share[:, None], 0) / tl.where(whole == 0.0, 1.0, whole) * by
        tl.store(out_ptr + (token * H + head) * R + r, result.to(out_ptr.dtype.element_ty), mask=r < R)
