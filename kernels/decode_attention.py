"""The decode half of paged attention: few queries a sequence, contexts cut in splits that are added in order."""

# mypy: disable-error-code="no-untyped-def"
import torch

from kernels import dispatch
from kernels.attention_step import HIDDEN, LOG2_E, Step, Tile, arguments, averaged, load_kv, score, update
from kernels.code_attention import CODES_D, attend_codes
from kernels.float8_kv import beside_codes
from kernels.language import cdiv, jit, next_power_of_2, tl

DECODE_ROWS = 32  # queries x heads per KV head up to which a sequence counts as a decode: one tile of tensor-core rows
_MIN_SPLIT_KEYS = 64


def launch(step: Step, query_limit: int, max_context_len: int, num_splits: int | None) -> None:
    """Attend for the sequences with at most `query_limit` queries; `num_splits` None: as many as fill the card."""
    H, D = step.q.shape[1:]
    S, K = step.context_lens.shape[0], step.k_cache.shape[2]
    tile = _decode_tile(query_limit * (H // K), D, step.k_cache.element_size())
    splits = num_splits or _splits(step, max_context_len)
    block_d = next_power_of_2(D)
    if splits > 1:
        partial = step.q.new_empty((S, K, splits, tile.rows, block_d), dtype=torch.float32)
        state = step.q.new_empty((S, K, splits, 2, tile.rows), dtype=torch.float32)
    else:
        partial = state = step.out
    # KV heads run fastest: neighbours read the same blocks at the same time.
    _decode_kernel[(S * K, splits)](
        *arguments(step), partial, state,
        D=D, BLOCK_D=block_d, B=step.k_cache.shape[1], G=H // K, ROWS=tile.rows, KEYS=tile.keys, SPLITS=splits,
        MIN_TILES=cdiv(_MIN_SPLIT_KEYS, tile.keys), QUERY_LIMIT=query_limit, STAGES=tile.stages,
        WINDOW=step.window > 0, SOFTCAP=step.softcap > 0, SINKS=step.sinks is not None, num_warps=tile.warps,
    )  # fmt: skip
    if splits > 1:
        _merge_kernel[(S, query_limit * H)](
            partial, state, step.sinks if step.sinks is not None else state, step.query_start, step.context_lens,
            step.out, H, step.window, step.v_scale,
            D=D, BLOCK_D=block_d, G=H // K, ROWS=tile.rows, KEYS=tile.keys, SPLITS=splits,
            MIN_TILES=cdiv(_MIN_SPLIT_KEYS, tile.keys), BLOCK_SPLITS=next_power_of_2(splits), QUERY_LIMIT=query_limit,
            WINDOW=step.window > 0, SINKS=step.sinks is not None, num_warps=2,
        )  # fmt: skip


def _decode_tile(rows: int, D: int, itemsize: int) -> Tile:
    """Keys per tile: 32 KB of keys and values in flight per stage cover the memory's latency."""
    keys = max(16, min(64 if itemsize > 1 else 128, 16384 // (next_power_of_2(D) * itemsize)))
    return Tile(max(16, next_power_of_2(rows)), keys, warps=4, stages=3)


def _splits(step: Step, max_context_len: int) -> int:
    """Into how many parts to cut each context, so that the programs fill the card in whole waves.

    H100, three programs an SM (us): one sequence of 512 takes 12.2 whole and 5.8 in 8 parts; 8 of 4,096 take 53 in 6
    parts (one wave), 59 in 8; 32 of 2,048 take 96 whole, 99 in 3; 64 of 4,096 take 408 whole (1.3 waves), 366 in 2.
    """
    S, K = step.context_lens.shape[0], step.k_cache.shape[2]
    processors = dispatch.processors(step.q, elsewhere=8)
    wave = 3 * processors
    programs = S * K
    if programs >= 2 * wave:
        return 1  # many waves even out
    if programs > wave:
        wanted = min(range(1, 5), key=lambda n: cdiv(n * programs, wave) * wave / (n * programs) + 0.03 * n)
    else:
        wanted = 1 if 2 * programs > wave else wave // programs
    return max(1, min(wanted, cdiv(max_context_len, _MIN_SPLIT_KEYS), 64))


@jit
def _split_range(
    context, n, window, split, KEYS: tl.constexpr, SPLITS: tl.constexpr, MIN_TILES: tl.constexpr, WINDOW: tl.constexpr
):  # fmt: skip
    """First key that anybody sees, and the tiles [begin, end) of a split; only the sequence's own lengths decide."""
    first = context * 0
    if WINDOW:
        first = tl.maximum(context - n - window + 1, 0)
    start = first // KEYS
    stop = tl.cdiv(context, KEYS)
    per_split = tl.maximum(tl.cdiv(stop - start, SPLITS), MIN_TILES)
    begin = start + split * per_split
    return first, begin, tl.minimum(begin + per_split, stop), tl.cdiv(stop - start, per_split)


@jit
def _decode_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, tables_ptr, query_start_ptr, context_ptr, sinks_ptr, out_ptr,
    unit, softcap, window, v_scale, q_stride_t, q_stride_h, out_stride, stride_n, stride_b, stride_h, table_stride, K,
    partial_ptr, state_ptr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, B: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    SPLITS: tl.constexpr, MIN_TILES: tl.constexpr, QUERY_LIMIT: tl.constexpr, STAGES: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    sequence, kv_head = (tl.program_id(0) // K).to(tl.int64), tl.program_id(0) % K
    query_start = tl.load(query_start_ptr + sequence).to(tl.int64)
    n = (tl.load(query_start_ptr + sequence + 1) - query_start).to(tl.int32)
    context = tl.load(context_ptr + sequence)
    first, begin, end, parts = _split_range(context, n, window, tl.program_id(1), KEYS, SPLITS, MIN_TILES, WINDOW)
    # The first split also writes the zeros of an empty context.
    if (n > 0) & (n <= QUERY_LIMIT) & ((begin < end) | (tl.program_id(1) == 0)):
        row, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
        head = kv_head * G + row % G
        live_row = row < n * G
        inside = live_row[:, None] & (d < D)[None, :]
        token = query_start + row // G
        q_at = q_ptr + token * q_stride_t + head * q_stride_h
        position = context - n + row // G
        k_base, v_base = k_cache_ptr + kv_head.to(tl.int64) * stride_h, v_cache_ptr + kv_head.to(tl.int64) * stride_h
        table = tables_ptr + sequence * table_stride
        if k_cache_ptr.dtype.element_ty == tl.float8e4nv and BLOCK_D >= CODES_D:
            top, total, acc = attend_codes(
                q_at, live_row, k_base, v_base, table, begin, end, first, context, position, unit, softcap, window,
                stride_n, stride_b, ROWS, D, BLOCK_D, B, KEYS, STAGES, WINDOW, SOFTCAP,
            )  # fmt: skip
        else:
            q = beside_codes(tl.load(q_at[:, None] + d[None, :], mask=inside, other=0.0), k_cache_ptr)
            top = tl.full([ROWS], HIDDEN, tl.float32)
            total = tl.zeros([ROWS], tl.float32)
            acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
            for tile in tl.range(begin, end, num_stages=STAGES):
                key = tile * KEYS + tl.arange(0, KEYS)
                live = (key >= first) & (key < context)
                k, v = load_kv(
                    k_base, v_base, table, tile, live, d, stride_n, stride_b, D, BLOCK_D, B, KEYS, True, q.dtype
                )  # fmt: skip
                s = score(q, k, softcap, SOFTCAP)
                seen = live[None, :] & (key[None, :] <= position[:, None])
                if WINDOW:
                    seen = seen & (key[None, :] > position[:, None] - window)
                top, total, acc = update(tl.where(seen, s, HIDDEN), v, unit, top, total, acc)
        if parts <= 1:
            acc = averaged(top, total, acc, sinks_ptr + head, live_row, unit, v_scale, SINKS)
            to = (token * out_stride + head * D)[:, None] + d[None, :]
            tl.store(out_ptr + to, acc.to(out_ptr.dtype.element_ty), mask=inside)
        else:
            part = (sequence * K + kv_head) * SPLITS + tl.program_id(1)
            tl.store(partial_ptr + part * (ROWS * BLOCK_D) + row[:, None] * BLOCK_D + d[None, :], acc, mask=inside)
            tl.store(state_ptr + part * (2 * ROWS) + row, top * unit, mask=live_row)
            tl.store(state_ptr + part * (2 * ROWS) + ROWS + row, total, mask=live_row)


@jit
def _merge_kernel(
    partial_ptr, state_ptr, sinks_ptr, query_start_ptr, context_ptr, out_ptr, H, window, v_scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    SPLITS: tl.constexpr, MIN_TILES: tl.constexpr, BLOCK_SPLITS: tl.constexpr, QUERY_LIMIT: tl.constexpr,
    WINDOW: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    i, head = tl.program_id(1) // H, tl.program_id(1) % H
    query_start = tl.load(query_start_ptr + sequence).to(tl.int64)
    n = (tl.load(query_start_ptr + sequence + 1) - query_start).to(tl.int32)
    context = tl.load(context_ptr + sequence)
    _first, _begin, _end, parts = _split_range(context, n, window, 0, KEYS, SPLITS, MIN_TILES, WINDOW)
    if (i < n) & (n <= QUERY_LIMIT) & (parts > 1):
        split, d = tl.arange(0, BLOCK_SPLITS), tl.arange(0, BLOCK_D)
        row = i * G + head % G
        part = (sequence * (H // G) + head // G) * SPLITS + split
        live = split < parts
        top = tl.load(state_ptr + part * (2 * ROWS) + row, mask=live, other=HIDDEN)
        total = tl.load(state_ptr + part * (2 * ROWS) + ROWS + row, mask=live, other=0.0)
        higher = tl.max(top, 0)
        if SINKS:
            sink = tl.load(sinks_ptr + head).to(tl.float32) * LOG2_E
            higher = tl.maximum(higher, sink)
        share = tl.where(live, tl.exp2(top - higher), 0.0)
        sum_all = tl.sum(share * total, 0)
        if SINKS:
            sum_all += tl.exp2(sink - higher)
        at = (part * (ROWS * BLOCK_D) + row * BLOCK_D)[:, None] + d[None, :]
        acc = tl.load(partial_ptr + at, mask=live[:, None] & (d < D)[None, :], other=0.0)
        result = tl.sum(acc * share[:, None], 0) / sum_all * v_scale
        to = (query_start + i) * (H * D) + head * D + d
        tl.store(out_ptr + to, result.to(out_ptr.dtype.element_ty), mask=d < D)
