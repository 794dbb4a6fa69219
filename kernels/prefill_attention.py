"""The prefill half of paged attention: sequences with more queries than a decode, in tiles of queries."""

# mypy: disable-error-code="no-untyped-def"
import torch

from kernels import dispatch
from kernels.attention_step import HIDDEN, LOG2_E, Step, Tile, arguments, load_kv, score, update
from kernels.language import jit, next_power_of_2, tl


def launch(step: Step, decode_limit: int, max_context_len: int) -> None:
    T, H, D = step.q.shape
    S, K = step.context_lens.shape[0], step.k_cache.shape[2]
    if _hopper_fits(step):
        from kernels import hopper_prefill  # Gluon, which neither the interpreter nor an older card needs to load

        tiles = T // (hopper_prefill.ROWS // (H // K)) + S
        hopper_prefill.launch(
            (tiles, K), (*arguments(step), S, tiles), max_context_len,
            D=D, B=step.k_cache.shape[1], G=H // K, DECODE_LIMIT=decode_limit,
            WINDOW=step.window > 0, SOFTCAP=step.softcap > 0, SINKS=step.sinks is not None,
        )  # fmt: skip
        return
    tile = _prefill_tile(D, step.q.element_size())
    # A sequence has at most n // queries + 1 tiles, so this many programs suffice whatever the lengths: no sync.
    tiles = T // (tile.rows // (H // K)) + S
    _prefill_kernel[(tiles, K)](
        *arguments(step), S, tiles,
        D=D, BLOCK_D=next_power_of_2(D), B=step.k_cache.shape[1], G=H // K, ROWS=tile.rows, KEYS=tile.keys,
        DECODE_LIMIT=decode_limit, STAGES=tile.stages, WINDOW=step.window > 0, SOFTCAP=step.softcap > 0,
        SINKS=step.sinks is not None, num_warps=tile.warps,
    )  # fmt: skip


def _hopper_fits(step: Step) -> bool:
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
        k, v = load_kv(k_base, v_base, table, tile, live, d, stride_n, stride_b, D, BLOCK_D, B, KEYS, MASKED)
        s = score(q, k, softcap, SOFTCAP)
        if MASKED:
            seen = live[None, :] & (key[None, :] <= position[:, None])
            if WINDOW:
                seen = seen & (key[None, :] > position[:, None] - window)
            s = tl.where(seen, s, HIDDEN)
        top, total, acc = update(s, v, unit, top, total, acc)
    return top, total, acc


@jit
def _prefill_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, tables_ptr, query_start_ptr, context_ptr, sinks_ptr, out_ptr,
    unit, softcap, window, q_stride_t, q_stride_h, out_stride, stride_n, stride_b, stride_h, table_stride, _K,
    S, tiles,
    D: tl.constexpr, BLOCK_D: tl.constexpr, B: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    DECODE_LIMIT: tl.constexpr, STAGES: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    QUERIES: tl.constexpr = ROWS // G
    # Later queries see more keys: they start first, so that the last programs to run are the short ones.
    tile = tiles - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = _find_sequence(query_start_ptr, S, tile, QUERIES)
    query_start = tl.load(query_start_ptr + sequence)
    n = tl.load(query_start_ptr + sequence + 1) - query_start
    context = tl.load(context_ptr + sequence)
    i0 = (tile - (query_start // QUERIES + sequence)) * QUERIES
    if (n > DECODE_LIMIT) & (i0 < n):
        row, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
        i = i0 + row // G
        head = kv_head * G + row % G
        live_row = (row < QUERIES * G) & (i < n)
        inside = live_row[:, None] & (d < D)[None, :]
        token = (query_start + i).to(tl.int64)
        q = tl.load(q_ptr + (token * q_stride_t + head * q_stride_h)[:, None] + d[None, :], mask=inside, other=0.0)
        position = context - n + i
        last = context - n + tl.minimum(i0 + QUERIES, n) - 1  # position of the tile's last query
        earliest = context - n + i0
        first = context * 0
        full_from = 0
        if WINDOW:
            first = tl.maximum(earliest - window + 1, 0)
            full_from = tl.cdiv(tl.maximum(last - window + 1, 0), KEYS)
        begin, end = first // KEYS, tl.cdiv(last + 1, KEYS)
        full_to = tl.maximum((earliest + 1) // KEYS, begin)
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
        if SINKS:
            sink = tl.load(sinks_ptr + head, mask=live_row, other=0.0).to(tl.float32) * LOG2_E
            top = top * unit
            higher = tl.maximum(top, sink)
            decay = tl.exp2(top - higher)
            total = total * decay + tl.exp2(sink - higher)
            acc = acc * decay[:, None]
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        to = (token * out_stride + head * D)[:, None] + d[None, :]
        tl.store(out_ptr + to, acc.to(out_ptr.dtype.element_ty), mask=inside)
