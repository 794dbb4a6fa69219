"""The prefill half of paged attention for Hopper GPUs, where plain Triton leaves the tensor cores idle half the time.

Triton waits for each product where it is issued, so softmax and tensor cores take turns. Here, in Gluon (Triton's lower
level), the next tile's q k^T and the last tile's p v run while the softmax of the current tile is computed: one CTA of
two warpgroups, 128 rows, keys 64 at a time through three buffers of shared memory filled by asynchronous copies that
follow the block table. The scheme is FlashAttention-3's (Shah et al. 2024, section 3.2), gather instead of TMA.
`paged_attention` takes this kernel for 16-bit tensors with D 64 or 128 on compute capability 9.0, and its own
elsewhere; the interpreter knows no Gluon, so this file is tested on the card alone.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

ROWS, KEYS = 128, 64
KEY_BUFFERS, VALUE_BUFFERS = 3, 3  # a tile is asked for two turns before it is used: L2 latency under load, twice over

_MASKED = gl.constexpr(-1.0e30)
_LOG2_E = gl.constexpr(1.4426950408889634)
_barrier = getattr(gl, "thread_barrier", None) or gl.barrier  # renamed between Triton 3.6 and 3.9


def launch(grid: tuple[int, int], arguments: tuple[Any, ...], **constants: Any) -> None:
    """Launch over (query tiles, KV heads) with the arguments of the plain prefill kernel."""
    _hopper_prefill_kernel[grid](
        *arguments, ROWS=ROWS, KEYS=KEYS, KEY_BUFFERS=KEY_BUFFERS, VALUE_BUFFERS=VALUE_BUFFERS, num_warps=8, **constants
    )


@gluon.jit
def _find_sequence(query_start_ptr, S, tile, QUERIES: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [8], [0])
    found = tile * 0
    for base in range(0, S, 256):
        s = base + gl.arange(0, 256, layout=layout)
        start = gl.load(query_start_ptr + s, mask=s < S, other=0) // QUERIES + s
        found += gl.sum(((s < S) & (start <= tile)).to(gl.int32), 0)
    return found - 1


@gluon.jit
def _blocks(table, tile, first, context, key, B: gl.constexpr, KEYS: gl.constexpr):
    """Block of each row of a tile, and which rows anybody may see."""
    at = tile * KEYS + key
    live = (at >= first) & (at < context)
    return gl.load(table + tile * (KEYS // B) + key // B, mask=live, other=0), live


@gluon.jit
def _fetch(target, base, block, live, inner, stride_n):
    """Ask for a tile's rows (`inner`: their places within a block); the others arrive as zeros."""
    rows = gl.expand_dims(block.to(gl.int64) * stride_n, 1) + inner
    async_copy.async_copy_global_to_shared(target, base + rows, mask=gl.expand_dims(live, 1))


@gluon.jit
def _softmax(
    s, tile, top, total, unit, softcap, position, window, KEYS: gl.constexpr, WINDOW: gl.constexpr,
    SOFTCAP: gl.constexpr, MASKED: gl.constexpr, S_LAYOUT: gl.constexpr,
):  # fmt: skip
    """Weights of a tile of scores, the new running maximum and sum, and by how much older sums shrink."""
    if SOFTCAP:
        s = 2 / (1 + gl.exp2(s * (-2 * softcap * _LOG2_E))) - 1
    if MASKED:
        key = gl.expand_dims(tile * KEYS + gl.arange(0, KEYS, layout=gl.SliceLayout(0, S_LAYOUT)), 0)
        where = gl.expand_dims(position, 1)
        seen = key <= where
        if WINDOW:
            seen = seen & (key > where - window)
        s = gl.where(seen, s, _MASKED)
    higher = gl.maximum(top, gl.max(s, 1))
    p = gl.exp2(s * unit - gl.expand_dims(higher * unit, 1))
    decay = gl.exp2((top - higher) * unit)
    return p, higher, total * decay + gl.sum(p, 1), decay


@gluon.jit
def _tiles(
    begin, low, high, p, o, top, total, block, live, block_2, live_2, q_tile, k_tiles, v_tiles, k_base, v_base, table,
    first, context, inner, key, position, unit, softcap, window, stride_n,
    B: gl.constexpr, WINDOW: gl.constexpr, SOFTCAP: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """For key tiles [low, high): scores of tile t and the p v of tile t - 1 together, then the softmax of t.

    The tensor cores work on p v while the softmax runs. Nothing is in flight from one turn to the next: the assembler
    would wait after every single product otherwise. `block` and `block_2` are the blocks of tiles t + 1 and t + 2,
    looked up a turn before they are needed.
    """
    KEYS: gl.constexpr = k_tiles.shape[1]
    ROWS: gl.constexpr = q_tile.shape[0]
    KEY_BUFFERS: gl.constexpr = k_tiles.shape[0]
    VALUE_BUFFERS: gl.constexpr = v_tiles.shape[0]
    s_layout: gl.constexpr = top.type.layout.parent
    o_layout: gl.constexpr = o.type.layout
    for t in range(low, high):
        j = t - begin
        block_3, live_3 = _blocks(table, t + 3, first, context, key, B, KEYS)
        # All copies of this thread but the newest group are in. The barrier makes that true of every thread, and
        # says that all are done with the buffers which the new copies overwrite.
        async_copy.wait_group(1)
        fence_async_shared()
        _barrier()
        k_tile, v_tile = k_tiles.index(j % KEY_BUFFERS), v_tiles.index((j - 1) % VALUE_BUFFERS)
        empty = gl.zeros([ROWS, KEYS], gl.float32, layout=s_layout)
        scores = warpgroup_mma(q_tile, k_tile.permute((1, 0)), empty, use_acc=False, is_async=True)
        acc = warpgroup_mma(p, v_tile, o, is_async=True)
        _fetch(k_tiles.index((j + 2) % KEY_BUFFERS), k_base, block_2, live_2, inner, stride_n)
        _fetch(v_tiles.index((j + 1) % VALUE_BUFFERS), v_base, block, live, inner, stride_n)
        async_copy.commit_group()
        s = warpgroup_mma_wait(1, deps=[scores])
        weights, top, total, decay = _softmax(
            s, t, top, total, unit, softcap, position, window, KEYS, WINDOW, SOFTCAP, MASKED, s_layout
        )  # fmt: skip
        p_next = gl.convert_layout(weights.to(p.dtype), p.type.layout)
        # The wait names the new weights too, or the assembler would move it before the softmax.
        o, _p, p = warpgroup_mma_wait(0, deps=[acc, p, p_next])
        o = o * gl.expand_dims(gl.convert_layout(decay, gl.SliceLayout(1, o_layout)), 1)
        block, live, block_2, live_2 = block_2, live_2, block_3, live_3
    return p, o, top, total, block, live, block_2, live_2


@gluon.jit
def _hopper_prefill_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, tables_ptr, query_start_ptr, context_ptr, sinks_ptr, out_ptr,
    unit, softcap, window, q_stride_t, q_stride_h, out_stride, stride_n, stride_b, stride_h, table_stride, _K,
    S, tiles,
    D: gl.constexpr, B: gl.constexpr, G: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr,
    KEY_BUFFERS: gl.constexpr, VALUE_BUFFERS: gl.constexpr, DECODE_LIMIT: gl.constexpr,
    WINDOW: gl.constexpr, SOFTCAP: gl.constexpr, SINKS: gl.constexpr,
):  # fmt: skip
    QUERIES: gl.constexpr = ROWS // G
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, KEYS, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    # 16 bytes a thread: D / 8 threads read a row.
    io_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [8, 1], [1, 0])
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)

    tile = tiles - 1 - gl.program_id(0)
    kv_head = gl.program_id(1)
    sequence = _find_sequence(query_start_ptr, S, tile, QUERIES)
    query_start = gl.load(query_start_ptr + sequence)
    n = gl.load(query_start_ptr + sequence + 1) - query_start
    context = gl.load(context_ptr + sequence)
    i0 = (tile - (query_start // QUERIES + sequence)) * QUERIES
    if (n > DECODE_LIMIT) & (i0 < n):
        last = context - n + gl.minimum(i0 + QUERIES, n) - 1
        earliest = context - n + i0
        first = context * 0
        if WINDOW:
            first = gl.maximum(earliest - window + 1, 0)
        begin, end = first // KEYS, gl.cdiv(last + 1, KEYS)

        key = gl.arange(0, KEYS, layout=gl.SliceLayout(1, io_layout))
        d = gl.arange(0, D, layout=gl.SliceLayout(0, io_layout))
        inner = gl.expand_dims((key % B).to(gl.int64) * stride_b, 1) + gl.expand_dims(d, 0)
        k_base = k_cache_ptr + kv_head.to(gl.int64) * stride_h
        v_base = v_cache_ptr + kv_head.to(gl.int64) * stride_h
        table = tables_ptr + sequence.to(gl.int64) * table_stride
        k_tiles = gl.allocate_shared_memory(dtype, [KEY_BUFFERS, KEYS, D], shared)
        v_tiles = gl.allocate_shared_memory(dtype, [VALUE_BUFFERS, KEYS, D], shared)
        # Group 0: key tiles 0 and 1 and value tile 0; then, as in every turn of the loop, two tiles of keys ahead.
        block_0, live_0 = _blocks(table, begin, first, context, key, B, KEYS)
        block, live = _blocks(table, begin + 1, first, context, key, B, KEYS)
        block_2, live_2 = _blocks(table, begin + 2, first, context, key, B, KEYS)
        _fetch(k_tiles.index(0), k_base, block_0, live_0, inner, stride_n)
        _fetch(k_tiles.index(1), k_base, block, live, inner, stride_n)
        _fetch(v_tiles.index(0), v_base, block_0, live_0, inner, stride_n)
        async_copy.commit_group()
        _fetch(k_tiles.index(2), k_base, block_2, live_2, inner, stride_n)
        _fetch(v_tiles.index(1), v_base, block, live, inner, stride_n)
        async_copy.commit_group()
        block, live = block_2, live_2
        block_2, live_2 = _blocks(table, begin + 3, first, context, key, B, KEYS)

        io_row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, io_layout))
        io_live = (io_row < QUERIES * G) & (i0 + io_row // G < n)
        io_token = (query_start + i0 + io_row // G).to(gl.int64)
        io_head = kv_head * G + io_row % G
        q_at = gl.expand_dims(io_token * q_stride_t + io_head * q_stride_h, 1) + gl.expand_dims(d, 0)
        q = gl.load(q_ptr + q_at, mask=gl.expand_dims(io_live, 1), other=0.0)
        q_tile = gl.allocate_shared_memory(dtype, [ROWS, D], shared, q)

        row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, s_layout))
        position = context - n + i0 + row // G
        top = gl.full([ROWS], _MASKED, gl.float32, layout=gl.SliceLayout(1, s_layout))
        total = gl.zeros([ROWS], gl.float32, layout=gl.SliceLayout(1, s_layout))
        o = gl.zeros([ROWS, D], gl.float32, layout=o_layout)
        empty = gl.zeros([ROWS, KEYS], gl.float32, layout=s_layout)

        async_copy.wait_group(1)
        fence_async_shared()
        _barrier()
        s = warpgroup_mma(q_tile, k_tiles.index(0).permute((1, 0)), empty, use_acc=False)
        weights, top, total, _decay = _softmax(
            s, begin, top, total, unit, softcap, position, window, KEYS, WINDOW, SOFTCAP, True, s_layout
        )  # fmt: skip
        p = gl.convert_layout(weights.to(dtype), p_layout)
        low, full_to = begin + 1, gl.maximum((earliest + 1) // KEYS, begin + 1)
        if WINDOW:
            full_from = gl.minimum(gl.maximum(gl.cdiv(gl.maximum(last - window + 1, 0), KEYS), low), full_to)
            p, o, top, total, block, live, block_2, live_2 = _tiles(
                begin, low, full_from, p, o, top, total, block, live, block_2, live_2, q_tile, k_tiles, v_tiles,
                k_base, v_base, table, first, context, inner, key, position, unit, softcap, window, stride_n,
                B, WINDOW, SOFTCAP, True,
            )  # fmt: skip
            low = full_from
        p, o, top, total, block, live, block_2, live_2 = _tiles(
            begin, low, full_to, p, o, top, total, block, live, block_2, live_2, q_tile, k_tiles, v_tiles,
            k_base, v_base, table, first, context, inner, key, position, unit, softcap, window, stride_n,
            B, WINDOW, SOFTCAP, False,
        )  # fmt: skip
        p, o, top, total, block, live, block_2, live_2 = _tiles(
            begin, full_to, end, p, o, top, total, block, live, block_2, live_2, q_tile, k_tiles, v_tiles,
            k_base, v_base, table, first, context, inner, key, position, unit, softcap, window, stride_n,
            B, WINDOW, SOFTCAP, True,
        )  # fmt: skip
        async_copy.wait_group(0)
        fence_async_shared()
        _barrier()
        o = warpgroup_mma(p, v_tiles.index((end - 1 - begin) % VALUE_BUFFERS), o)

        if SINKS:
            head = kv_head * G + row % G
            sink = gl.load(sinks_ptr + head, mask=row < QUERIES * G, other=0.0).to(gl.float32) * _LOG2_E
            higher = gl.maximum(top * unit, sink)
            shrink = gl.exp2(top * unit - higher)
            total = total * shrink + gl.exp2(sink - higher)
            o = o * gl.expand_dims(gl.convert_layout(shrink, gl.SliceLayout(1, o_layout)), 1)
        o = o / gl.expand_dims(gl.convert_layout(total, gl.SliceLayout(1, o_layout)), 1)
        to = gl.expand_dims(io_token * out_stride + io_head * D, 1) + gl.expand_dims(d, 0)
        gl.store(out_ptr + to, gl.convert_layout(o.to(dtype), io_layout), mask=gl.expand_dims(io_live, 1))
