"""The prefill half of paged attention: sequences with more queries than a decode, in tiles of queries.

A few queries behind a long context are too few tiles for the card: then the keys are cut in parts, each the work of a
program, and `_merge_prefill_kernel` adds the parts in their order. Up to `UNCUT_KEYS` that gains nothing.
"""

# mypy: disable-error-code="no-untyped-def"
import torch

from kernels import dispatch
from kernels.attention_step import HIDDEN, LOG2_E, Step, Tile, arguments, averaged, load_kv, score, update
from kernels.float8_kv import beside_codes
from kernels.language import cdiv, jit, jit_alike, next_power_of_2, tl

UNCUT_KEYS = 1024
_MIN_SPLIT_KEYS = 512
_MERGE_ROWS = 16


def launch(step: Step, decode_limit: int, max_context_len: int) -> None:
    """Attend for the sequences with more than `decode_limit` queries."""
    T, H, D = step.q.shape
    S, K = step.context_lens.shape[0], step.k_cache.shape[2]
    on_hopper = hopper_fits(step)
    if on_hopper:
        from kernels import hopper_prefill  # Gluon, which neither the interpreter nor an older card needs to load

        tile = hopper_prefill.tile(max_context_len)
    else:
        tile = _prefill_tile(D, step.q.element_size())
    # A sequence has at most n // queries + 1 tiles, so this many programs suffice whatever the lengths: no sync.
    tiles = T // (tile.rows // (H // K)) + S
    parts = splits(step, max_context_len)
    if parts > 1:
        partial = step.q.new_empty((parts, T, H, D), dtype=torch.float32)
        state = step.q.new_empty((parts, 2, T, H), dtype=torch.float32)
    else:
        partial = state = step.out
    same = {
        "D": D, "G": H // K, "ROWS": tile.rows, "KEYS": tile.keys, "DECODE_LIMIT": decode_limit, "SPLITS": parts,
        "MIN_TILES": cdiv(_MIN_SPLIT_KEYS, tile.keys), "WINDOW": step.window > 0, "SINKS": step.sinks is not None,
    }  # fmt: skip
    if on_hopper:
        # Cut keys are copied by threads: that is how it was measured.
        k_desc, v_desc = hopper_prefill.descriptors(step) if parts == 1 else (None, None)
        kernel, more = hopper_prefill.hopper_prefill_kernel, {"k_desc": k_desc, "v_desc": v_desc}
    else:
        kernel, more = _prefill_kernel, {"BLOCK_D": next_power_of_2(D)}
    kernel[(tiles, K, parts)](
        *arguments(step), S, tiles, T, partial, state,
        B=step.k_cache.shape[1], STAGES=tile.stages, SOFTCAP=step.softcap > 0, num_warps=tile.warps, **same, **more,
    )  # fmt: skip
    if parts > 1:
        _merge_prefill_kernel[(tiles, K, cdiv(tile.rows, _MERGE_ROWS))](
            partial, state, step.query_start, step.context_lens, step.sinks if step.sinks is not None else state,
            step.out, step.out.stride(0), step.window, step.v_scale, S, tiles, T,
            BLOCK_D=next_power_of_2(D), MERGE_ROWS=_MERGE_ROWS, num_warps=2, **same,
        )  # fmt: skip


def splits(step: Step, max_context_len: int) -> int:
    """Into how many parts to cut the keys: as many as give each processor something to do; powers of two, as each is
    another variant of the kernels. Not in a fixed order, where the number of queries must not decide."""
    T, H, _ = step.q.shape
    K = step.k_cache.shape[2]
    processors = dispatch.processors(step.q, elsewhere=128)
    programs = cdiv(T * (H // K), 128) * K
    uncut = dispatch.fixed() or max_context_len <= UNCUT_KEYS
    wanted = 1 if uncut else min(processors // programs, max_context_len // _MIN_SPLIT_KEYS, 16)
    return 1 << (max(wanted, 1).bit_length() - 1)


def takes_all(step: Step, max_context_len: int) -> bool:
    """Say whether decodes beside prefills may stay in this kernel: few, keys few or cut fine; it saves launches."""
    fine = max_context_len <= UNCUT_KEYS or splits(step, max_context_len) >= 4
    return step.context_lens.shape[0] <= 8 and hopper_fits(step) and fine


def hopper_fits(step: Step) -> bool:
    """Say whether the Hopper form of the prefill can serve the step."""
    q, B = step.q, step.k_cache.shape[1]
    on_hopper = q.is_cuda and torch.cuda.get_device_capability(q.device) == (9, 0)
    suits = q.element_size() == 2 and q.shape[2] in (64, 128) and 64 % B == 0
    return on_hopper and suits and not dispatch.fixed()  # its tiles of keys depend on the longest context


def _prefill_tile(D: int, itemsize: int) -> Tile:
    """128 rows feed two warpgroups; keys halve as heads widen, so that three stages fit the shared memory of an SM."""
    if itemsize > 2:
        return Tile(64, 32, warps=4, stages=1)
    if D > 128:
        return Tile(128, 32, warps=8, stages=2)
    return Tile(128, 64, warps=8, stages=3)


@jit
def _find_sequence(query_start_ptr, S, tile, QUERIES: tl.constexpr):
    """Sequence of a query tile: how many begin at or before it; s begins at tile query_start[s] // QUERIES + s."""
    found = tile * 0
    for base in range(0, S, 256):
        s = base + tl.arange(0, 256)
        start = tl.load(query_start_ptr + s, mask=s < S, other=0) // QUERIES + s
        found += tl.sum(((s < S) & (start <= tile)).to(tl.int32), 0)
    return found - 1


@jit
def find_tile(query_start_ptr, context_ptr, S, tile, QUERIES: tl.constexpr):
    """Sequence of a query tile, its first query's row, its numbers of queries and keys, the tile's first query."""
    sequence = _find_sequence(query_start_ptr, S, tile, QUERIES)
    query_start = tl.load(query_start_ptr + sequence)
    n = tl.load(query_start_ptr + sequence + 1) - query_start
    i0 = (tile - (query_start // QUERIES + sequence)) * QUERIES
    return sequence, query_start, n, tl.load(context_ptr + sequence), i0


@jit
def _key_tiles(
    context, n, i0, window, QUERIES: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, MIN_TILES: tl.constexpr,
    WINDOW: tl.constexpr,
):  # fmt: skip
    """Tiles of keys [begin, end) that a tile of queries sees, and how many of them are a part."""
    first = context * 0
    if WINDOW:
        first = tl.maximum(context - n + i0 - window + 1, 0)
    begin = first // KEYS
    end = tl.maximum(tl.cdiv(context - n + tl.minimum(i0 + QUERIES, n), KEYS), begin + 1)
    return begin, end, tl.maximum(tl.cdiv(end - begin, SPLITS), MIN_TILES if SPLITS > 1 else 1)


@jit
def _prefill_tiles(
    begin, end, q, top, total, acc, k_base, v_base, table, position, first, context, d, unit, softcap, window,
    stride_n, stride_b,
    D: tl.constexpr, BLOCK_D: tl.constexpr, B: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Run the softmax over key tiles [begin, end); MASKED where it crosses the diagonal or a window's edge."""
    for tile in tl.range(begin, end, num_stages=STAGES):
        key = tile * KEYS + tl.arange(0, KEYS)
        live = (key >= first) & (key < context)
        k, v = load_kv(k_base, v_base, table, tile, live, d, stride_n, stride_b, D, BLOCK_D, B, KEYS, MASKED, q.dtype)
        s = score(q, k, softcap, SOFTCAP)
        if MASKED:
            seen = live[None, :] & (key[None, :] <= position[:, None])
            if WINDOW:
                seen = seen & (key[None, :] > position[:, None] - window)
            s = tl.where(seen, s, HIDDEN)
        top, total, acc = update(s, v, unit, top, total, acc)
    return top, total, acc


@jit_alike("S", "tiles", "T")
def _prefill_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, tables_ptr, query_start_ptr, context_ptr, sinks_ptr, out_ptr,
    unit, softcap, window, v_scale, q_stride_t, q_stride_h, out_stride, stride_n, stride_b, stride_h, table_stride, _K,
    S, tiles, T, partial_ptr, state_ptr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, B: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    DECODE_LIMIT: tl.constexpr, SPLITS: tl.constexpr, MIN_TILES: tl.constexpr, STAGES: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    QUERIES: tl.constexpr = ROWS // G
    # Later queries see more keys: they start first, so that the last programs to run are the short ones.
    tile = tiles - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence, query_start, n, context, i0 = find_tile(query_start_ptr, context_ptr, S, tile, QUERIES)
    first_tile, stop, per_part = _key_tiles(context, n, i0, window, QUERIES, KEYS, SPLITS, MIN_TILES, WINDOW)
    begin = first_tile + tl.program_id(2) * per_part
    end = tl.minimum(begin + per_part, stop)
    if (n > DECODE_LIMIT) & (i0 < n) & (begin < end):
        row, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
        i = i0 + row // G
        head = kv_head * G + row % G
        live_row = (row < QUERIES * G) & (i < n)
        inside = live_row[:, None] & (d < D)[None, :]
        token = (query_start + i).to(tl.int64)
        q = tl.load(q_ptr + (token * q_stride_t + head * q_stride_h)[:, None] + d[None, :], mask=inside, other=0.0)
        q = beside_codes(q, k_cache_ptr)
        position = context - n + i
        last = context - n + tl.minimum(i0 + QUERIES, n) - 1  # position of the tile's last query
        earliest = context - n + i0
        first = context * 0
        full_from = 0
        if WINDOW:
            first = tl.maximum(earliest - window + 1, 0)
            full_from = tl.cdiv(tl.maximum(last - window + 1, 0), KEYS)
        full_to = tl.maximum(tl.minimum((earliest + 1) // KEYS, end), begin)
        full_from = tl.minimum(tl.maximum(full_from, begin), full_to)
        top = tl.full([ROWS], HIDDEN, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
        k_base, v_base = k_cache_ptr + kv_head.to(tl.int64) * stride_h, v_cache_ptr + kv_head.to(tl.int64) * stride_h
        table = tables_ptr + sequence.to(tl.int64) * table_stride
        if WINDOW:
            top, total, acc = _prefill_tiles(
                begin, full_from, q, top, total, acc, k_base, v_base, table, position, first, context, d,
                unit, softcap, window, stride_n, stride_b, D, BLOCK_D, B, KEYS, STAGES, WINDOW, SOFTCAP, True,
            )  # fmt: skip
        top, total, acc = _prefill_tiles(
            full_from, full_to, q, top, total, acc, k_base, v_base, table, position, first, context, d,
            unit, softcap, window, stride_n, stride_b, D, BLOCK_D, B, KEYS, STAGES, WINDOW, SOFTCAP, False,
        )  # fmt: skip
        top, total, acc = _prefill_tiles(
            full_to, end, q, top, total, acc, k_base, v_base, table, position, first, context, d,
            unit, softcap, window, stride_n, stride_b, D, BLOCK_D, B, KEYS, STAGES, WINDOW, SOFTCAP, True,
        )  # fmt: skip
        if (SPLITS > 1) & (per_part < stop - first_tile):
            part = (tl.program_id(2).to(tl.int64) * T + token) * (tl.num_programs(1) * G) + head
            tl.store(partial_ptr + part[:, None] * D + d[None, :], acc, mask=inside)
            part += tl.program_id(2).to(tl.int64) * T * (tl.num_programs(1) * G)
            tl.store(state_ptr + part, top * unit, mask=live_row)
            tl.store(state_ptr + part + T * (tl.num_programs(1) * G), total, mask=live_row)
        else:
            acc = averaged(top, total, acc, sinks_ptr + head, live_row, unit, v_scale, SINKS)
            to = (token * out_stride + head * D)[:, None] + d[None, :]
            tl.store(out_ptr + to, acc.to(out_ptr.dtype.element_ty), mask=inside)


@jit_alike("S", "tiles", "T")
def _merge_prefill_kernel(
    partial_ptr, state_ptr, query_start_ptr, context_ptr, sinks_ptr, out_ptr, out_stride, window, v_scale, S, tiles, T,
    D: tl.constexpr, BLOCK_D: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    DECODE_LIMIT: tl.constexpr, SPLITS: tl.constexpr, MIN_TILES: tl.constexpr, WINDOW: tl.constexpr,
    SINKS: tl.constexpr, MERGE_ROWS: tl.constexpr,
):  # fmt: skip
    QUERIES: tl.constexpr = ROWS // G
    tile = tiles - 1 - tl.program_id(0)
    _sequence, query_start, n, context, i0 = find_tile(query_start_ptr, context_ptr, S, tile, QUERIES)
    begin, stop, per_part = _key_tiles(context, n, i0, window, QUERIES, KEYS, SPLITS, MIN_TILES, WINDOW)
    if (n > DECODE_LIMIT) & (i0 < n) & (per_part < stop - begin):
        row, d = tl.program_id(2) * MERGE_ROWS + tl.arange(0, MERGE_ROWS), tl.arange(0, BLOCK_D)
        i = i0 + row // G
        live = (row < QUERIES * G) & (i < n)
        inside = live[:, None] & (d < D)[None, :]
        H = tl.num_programs(1) * G
        head = tl.program_id(1) * G + row % G
        token = (query_start + i).to(tl.int64)
        at, step = token * H + head, T.to(tl.int64) * H
        parts = tl.cdiv(stop - begin, per_part)
        top = tl.full([MERGE_ROWS], HIDDEN, tl.float32)
        for part in range(parts):
            top = tl.maximum(top, tl.load(state_ptr + 2 * part * step + at, mask=live, other=HIDDEN))
        total = tl.zeros([MERGE_ROWS], tl.float32)
        if SINKS:
            sink = tl.load(sinks_ptr + head, mask=live, other=0.0).to(tl.float32) * LOG2_E
            top = tl.maximum(top, sink)
            total = tl.exp2(sink - top)
        acc = tl.zeros([MERGE_ROWS, BLOCK_D], tl.float32)
        for part in range(parts):
            share = tl.exp2(tl.load(state_ptr + 2 * part * step + at, mask=live, other=HIDDEN) - top)
            total += share * tl.load(state_ptr + (2 * part + 1) * step + at, mask=live, other=0.0)
            values = tl.load(partial_ptr + (part * step + at)[:, None] * D + d[None, :], mask=inside, other=0.0)
            acc += values * share[:, None]
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None] * v_scale
        to = (token * out_stride + head * D)[:, None] + d[None, :]
        tl.store(out_ptr + to, acc.to(out_ptr.dtype.element_ty), mask=inside)
