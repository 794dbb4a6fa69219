"""Prefill attention for Hopper GPUs, where plain Triton leaves the tensor cores idle half the time.

Triton waits for each product where it is issued, so softmax and tensor cores take turns. Here, in Gluon (Triton's lower
level), four warps keep shared memory filled (`hopper_copy.py`), and two warpgroups of four warps, 64 rows each,
multiply: while one computes its softmax the tensor cores serve the other, and within each the p v of the last tile runs
beside the softmax of the next. The scheme is FlashAttention-3's (Shah et al. 2024). `paged_attention` takes this kernel
for 16-bit tensors with D 64 or 128 on compute capability 9.0, and its own elsewhere; the interpreter knows no Gluon, so
this file is tested on the card alone.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention_step import Step, Tile
from kernels.hopper_barrier import barrier
from kernels.hopper_copy import copy_tiles

_ROWS = 128
_STAGES = 3  # tiles of keys and values in shared memory: one read for scores, one for p v, one on its way
# 128 threads x (64 + 2 x 224) fill the 65,536 registers of an SM; the copy unit leaves more of them to the others.
_COPY_REGISTERS, _MULTIPLY_REGISTERS = gl.constexpr(64), gl.constexpr(224)
_UNIT_COPY_REGISTERS, _UNIT_MULTIPLY_REGISTERS = gl.constexpr(40), gl.constexpr(232)

_MASKED, _NOTHING, _LOG2_E = gl.constexpr(-1.0e30), gl.constexpr(-1.0e20), gl.constexpr(1.4426950408889634)


def tile(max_context_len: int) -> Tile:
    """Return the tile and how it is run; `warps` are those of the first partition."""
    # H100, TFLOP/s with 128 / 64 keys a tile: 522 / 489 at 8,192, 324 / 323 at 2,048, 300 / 323 at 1,024 tokens.
    return Tile(_ROWS, 128 if max_context_len > 1536 else 64, warps=4, stages=_STAGES)


def descriptors(step: Step) -> tuple[TensorDescriptor | None, TensorDescriptor | None]:
    """Return the caches as the copy unit takes blocks of one head from them; None where threads must copy."""
    N, B, K, D = step.k_cache.shape
    contiguous = step.k_cache.is_contiguous() and step.v_cache.is_contiguous()
    if B % 8 or not contiguous or step.k_cache.element_size() == 1:
        return None, None
    layout = gl.NVMMASharedLayout(128, 16, 2)
    k, v = (cache.view(N * B, K * D) for cache in (step.k_cache, step.v_cache))
    return TensorDescriptor.from_tensor(k, [B, D], layout), TensorDescriptor.from_tensor(v, [B, D], layout)


@gluon.jit
def _find_sequence(query_start_ptr, S, tile, QUERIES: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    found = tile * 0
    for base in range(0, S, 256):
        s = base + gl.arange(0, 256, layout=layout)
        start = gl.load(query_start_ptr + s, mask=s < S, other=0) // QUERIES + s
        found += gl.sum(((s < S) & (start <= tile)).to(gl.int32), 0)
    return found - 1


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
    # A row that has seen no key yet must not subtract _MASKED from itself: the FMA's rounding would leave 1e22.
    p = gl.exp2(s * unit - gl.expand_dims(gl.maximum(higher, _NOTHING) * unit, 1))
    decay = gl.exp2((top - higher) * unit)
    return p, higher, total * decay + gl.sum(p, 1), decay


@gluon.jit
def _tiles(
    begin, low, high, p, o, top, total, q_tile, k_tiles, v_tiles, full, empty, position, unit, softcap, window,
    WINDOW: gl.constexpr, SOFTCAP: gl.constexpr, MASKED: gl.constexpr, UNIT: gl.constexpr,
):  # fmt: skip
    """For key tiles [low, high): scores of tile t and the p v of tile t - 1 together, then the softmax of t.

    Nothing is in flight from one turn to the next: the assembler would wait after every single product otherwise.
    """
    ROWS: gl.constexpr = q_tile.shape[0]
    STAGES: gl.constexpr = k_tiles.shape[0]
    KEYS: gl.constexpr = k_tiles.shape[1]
    s_layout: gl.constexpr = top.type.layout.parent
    o_layout: gl.constexpr = o.type.layout
    for t in range(low, high):
        j = t - begin
        stage, before = j % STAGES, (j - 1) % STAGES
        mbarrier.wait(full.index(stage), (j // STAGES) & 1)
        empty_scores = gl.zeros([ROWS, KEYS], gl.float32, layout=s_layout)
        scores = warpgroup_mma(
            q_tile, k_tiles.index(stage).permute((1, 0)), empty_scores, use_acc=False, is_async=True
        )  # fmt: skip
        acc = warpgroup_mma(p, v_tiles.index(before), o, is_async=True)
        s = warpgroup_mma_wait(1, deps=[scores])
        weights, top, total, decay = _softmax(
            s, t, top, total, unit, softcap, position, window, KEYS, WINDOW, SOFTCAP, MASKED, s_layout
        )  # fmt: skip
        p_next = gl.convert_layout(weights.to(p.dtype), p.type.layout)
        if UNIT:
            # Nothing is waited for here, this tile is there. But it ends a basic block: the assembler moves the next
            # wait up to the last one otherwise, before the softmax. Where threads copy, that was faster (465 TFLOP/s,
            # not 432).
            mbarrier.wait(full.index(stage), (j // STAGES) & 1)
        # The wait names the new weights too, or the assembler would move it before the softmax.
        o, _p, p = warpgroup_mma_wait(0, deps=[acc, p, p_next])
        barrier()
        mbarrier.arrive(empty.index(before))
        o = o * gl.expand_dims(gl.convert_layout(decay, gl.SliceLayout(1, o_layout)), 1)
    return p, o, top, total


@gluon.jit
def _multiply(
    q_ptr, out_ptr, sinks_ptr, q_stride_t, q_stride_h, out_stride, query_start, i0, n, context, kv_head, begin, end,
    unit, softcap, window, v_scale, T, partial_ptr, state_ptr, whole, q_tiles, k_tiles, v_tiles, full, empty,
    GROUP: gl.constexpr, G: gl.constexpr, QUERIES: gl.constexpr, WINDOW: gl.constexpr, SOFTCAP: gl.constexpr,
    SINKS: gl.constexpr, SPLITS: gl.constexpr, UNIT: gl.constexpr,
):  # fmt: skip
    """Attend for 64 of the rows: the program of a multiplying warpgroup."""
    ROWS: gl.constexpr = q_tiles.shape[1]
    STAGES: gl.constexpr = k_tiles.shape[0]
    KEYS: gl.constexpr = k_tiles.shape[1]
    D: gl.constexpr = k_tiles.shape[2]
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    io_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])

    io_row = GROUP * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, io_layout))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, io_layout))
    io_live = (io_row < QUERIES * G) & (i0 + io_row // G < n)
    io_token = (query_start + i0 + io_row // G).to(gl.int64)
    io_head = kv_head * G + io_row % G
    q_at = gl.expand_dims(io_token * q_stride_t + io_head * q_stride_h, 1) + gl.expand_dims(d, 0)
    q_tile = q_tiles.index(GROUP)
    q_tile.store(gl.load(q_ptr + q_at, mask=gl.expand_dims(io_live, 1), other=0.0))
    fence_async_shared()
    barrier()

    row = GROUP * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, s_layout))
    position = context - n + i0 + row // G
    earliest = context - n + i0 + GROUP * ROWS // G
    last = context - n + gl.minimum(i0 + QUERIES, n) - 1
    top = gl.full([ROWS], _MASKED, gl.float32, layout=gl.SliceLayout(1, s_layout))
    total = gl.zeros([ROWS], gl.float32, layout=gl.SliceLayout(1, s_layout))
    o = gl.zeros([ROWS, D], gl.float32, layout=o_layout)
    empty_scores = gl.zeros([ROWS, KEYS], gl.float32, layout=s_layout)

    mbarrier.wait(full.index(0), 0)
    s = warpgroup_mma(q_tile, k_tiles.index(0).permute((1, 0)), empty_scores, use_acc=False)
    weights, top, total, _decay = _softmax(
        s, begin, top, total, unit, softcap, position, window, KEYS, WINDOW, SOFTCAP, True, s_layout
    )  # fmt: skip
    p = gl.convert_layout(weights.to(dtype), p_layout)
    low = begin + 1
    full_to = gl.minimum(gl.maximum((earliest + 1) // KEYS, low), gl.maximum(end, low))
    if WINDOW:
        full_from = gl.minimum(gl.maximum(gl.cdiv(gl.maximum(last - window + 1, 0), KEYS), low), full_to)
        p, o, top, total = _tiles(
            begin, low, full_from, p, o, top, total, q_tile, k_tiles, v_tiles, full, empty, position, unit, softcap,
            window, WINDOW, SOFTCAP, True, UNIT,
        )  # fmt: skip
        low = full_from
    p, o, top, total = _tiles(
        begin, low, full_to, p, o, top, total, q_tile, k_tiles, v_tiles, full, empty, position, unit, softcap, window,
        WINDOW, SOFTCAP, False, UNIT,
    )  # fmt: skip
    p, o, top, total = _tiles(
        begin, full_to, end, p, o, top, total, q_tile, k_tiles, v_tiles, full, empty, position, unit, softcap, window,
        WINDOW, SOFTCAP, True, UNIT,
    )  # fmt: skip
    o = warpgroup_mma(p, v_tiles.index((end - 1 - begin) % STAGES), o)

    head = kv_head * G + row % G
    if SPLITS > 1:
        live = (row < QUERIES * G) & (i0 + row // G < n) & (whole == 0)
        rows = T.to(gl.int64) * (gl.num_programs(1) * G)
        part = gl.program_id(2) * rows + (query_start + i0 + row // G).to(gl.int64) * (gl.num_programs(1) * G) + head
        gl.store(state_ptr + part + gl.program_id(2) * rows, top * unit, mask=live)
        gl.store(state_ptr + part + (gl.program_id(2) + 1) * rows, total, mask=live)
        column = gl.expand_dims(gl.arange(0, D, layout=gl.SliceLayout(0, o_layout)), 0)
        to = gl.expand_dims(gl.convert_layout(part, gl.SliceLayout(1, o_layout)), 1) * D + column
        inside = gl.expand_dims(gl.convert_layout(live, gl.SliceLayout(1, o_layout)), 1)
        gl.store(partial_ptr + to, o, mask=inside)
    if SINKS:
        sink = gl.load(sinks_ptr + head, mask=row < QUERIES * G, other=0.0).to(gl.float32) * _LOG2_E
        higher = gl.maximum(top * unit, sink)
        shrink = gl.exp2(top * unit - higher)
        total = total * shrink + gl.exp2(sink - higher)
        o = o * gl.expand_dims(gl.convert_layout(shrink, gl.SliceLayout(1, o_layout)), 1)
    divisor = gl.where(total == 0.0, 1.0, total)
    o = o / gl.expand_dims(gl.convert_layout(divisor, gl.SliceLayout(1, o_layout)), 1) * v_scale
    # Through the place of the queries, so that every thread stores 16 bytes.
    q_tile.store(o.to(dtype))
    barrier()
    to = gl.expand_dims(io_token * out_stride + io_head * D, 1) + gl.expand_dims(d, 0)
    gl.store(out_ptr + to, q_tile.load(io_layout), mask=gl.expand_dims(io_live & (whole != 0), 1))


@gluon.jit(do_not_specialize=["S", "tiles", "T"])  # they change from step to step: one variant for all
def hopper_prefill_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, tables_ptr, query_start_ptr, context_ptr, sinks_ptr, out_ptr,
    unit, softcap, window, v_scale, q_stride_t, q_stride_h, out_stride, stride_n, stride_b, stride_h, table_stride, _K,
    S, tiles, T, partial_ptr, state_ptr, k_desc, v_desc,
    D: gl.constexpr, B: gl.constexpr, G: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
    DECODE_LIMIT: gl.constexpr, SPLITS: gl.constexpr, MIN_TILES: gl.constexpr,
    WINDOW: gl.constexpr, SOFTCAP: gl.constexpr, SINKS: gl.constexpr,
):  # fmt: skip
    QUERIES: gl.constexpr = ROWS // G
    UNIT: gl.constexpr = k_desc is not None
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    tile = tiles - 1 - gl.program_id(0)
    kv_head = gl.program_id(1)
    sequence = _find_sequence(query_start_ptr, S, tile, QUERIES)
    query_start = gl.load(query_start_ptr + sequence)
    n = gl.load(query_start_ptr + sequence + 1) - query_start
    context = gl.load(context_ptr + sequence)
    i0 = (tile - (query_start // QUERIES + sequence)) * QUERIES
    first = context * 0
    if WINDOW:
        first = gl.maximum(context - n + i0 - window + 1, 0)
    begin = first // KEYS
    # One tile at least, masked if need be: with fewer keys than queries the first of them see none, and get zeros.
    end = gl.maximum(gl.cdiv(context - n + gl.minimum(i0 + QUERIES, n), KEYS), begin + 1)
    whole = 1
    if SPLITS > 1:  # as `_key_tiles` of the plain form cuts them
        per_part = gl.maximum(gl.cdiv(end - begin, SPLITS), MIN_TILES)
        whole = (per_part >= end - begin).to(gl.int32)
        begin += gl.program_id(2) * per_part
        end = gl.minimum(begin + per_part, end)
    if (n > DECODE_LIMIT) & (i0 < n) & (begin < end):
        k_base = k_cache_ptr + kv_head.to(gl.int64) * stride_h
        v_base = v_cache_ptr + kv_head.to(gl.int64) * stride_h
        table = tables_ptr + sequence.to(gl.int64) * table_stride
        q_tiles = gl.allocate_shared_memory(dtype, [2, ROWS // 2, D], shared)
        k_tiles = gl.allocate_shared_memory(dtype, [STAGES, KEYS, D], shared)
        v_tiles = gl.allocate_shared_memory(dtype, [STAGES, KEYS, D], shared)
        full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(STAGES):
            mbarrier.init(full.index(stage), count=1)
            mbarrier.init(empty.index(stage), count=2)  # both warpgroups must be done with it
        gl.warp_specialize(
            [
                (_multiply, (
                    q_ptr, out_ptr, sinks_ptr, q_stride_t, q_stride_h, out_stride, query_start, i0, n, context, kv_head,
                    begin, end, unit, softcap, window, v_scale, T, partial_ptr, state_ptr, whole, q_tiles, k_tiles,
                    v_tiles, full, empty, 0, G, QUERIES, WINDOW, SOFTCAP, SINKS, SPLITS, UNIT,
                )),
                (_multiply, (
                    q_ptr, out_ptr, sinks_ptr, q_stride_t, q_stride_h, out_stride, query_start, i0, n, context, kv_head,
                    begin, end, unit, softcap, window, v_scale, T, partial_ptr, state_ptr, whole, q_tiles, k_tiles,
                    v_tiles, full, empty, 1, G, QUERIES, WINDOW, SOFTCAP, SINKS, SPLITS, UNIT,
                )),
                (copy_tiles, (
                    k_base, v_base, table, begin, end, first, context, stride_n, stride_b, k_desc, v_desc, kv_head,
                    k_tiles, v_tiles, full, empty, B, UNIT,
                )),
            ],
            [4, 4],
            [_UNIT_MULTIPLY_REGISTERS, _UNIT_COPY_REGISTERS] if UNIT else [_MULTIPLY_REGISTERS, _COPY_REGISTERS],
        )  # fmt: skip
        for stage in gl.static_range(STAGES):
            mbarrier.invalidate(full.index(stage))
            mbarrier.invalidate(empty.index(stage))
