"""The copying warps of the Hopper prefill: they follow the block table and keep the stages of keys and values filled.

The copy unit fetches a block of one head at a time (B a multiple of 8, the height of a swizzled tile): one thread asks,
nobody computes addresses, and as many tiles are on their way as there are stages. It knows no masks, so a tile
with keys that nobody may see, which may be anything, is copied by the threads, which leave zeros there. Codes of 8 bits
pass through the threads, too, which make numbers of them on the way.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from kernels.hopper_barrier import barrier


@gluon.jit
def _blocks(table, tile, first, context, key, B: gl.constexpr, KEYS: gl.constexpr):
    """Block of each row of a tile, and which rows anybody may see."""
    live = (tile * KEYS + key >= first) & (tile * KEYS + key < context)
    return gl.load(table + tile * (KEYS // B) + key // B, mask=live, other=0), live


@gluon.jit
def _widened(base, at, inside, TO: gl.constexpr):
    """Codes of a tile as numbers."""
    return gl.load(base + at, mask=inside, other=0.0).to(gl.float16).to(gl.float32).to(TO)


@gluon.jit
def _widen_tiles(
    k_base, v_base, table, begin, end, first, context, stride_n, stride_b, k_tiles, v_tiles, full, empty,
    B: gl.constexpr,
):  # fmt: skip
    """Keep the stages filled from a cache in 8 bits. A tile takes half the time that its products do."""
    STAGES: gl.constexpr = k_tiles.shape[0]
    KEYS: gl.constexpr = k_tiles.shape[1]
    D: gl.constexpr = k_tiles.shape[2]
    TO: gl.constexpr = k_tiles.dtype
    layout: gl.constexpr = gl.BlockedLayout([1, 16], [512 // D, D // 16], [4, 1], [1, 0])  # 16 bytes a thread
    key = gl.arange(0, KEYS, layout=gl.SliceLayout(1, layout))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    inner = gl.expand_dims(key % B * stride_b, 1) + gl.expand_dims(d, 0)
    block, live = _blocks(table, begin, first, context, key, B, KEYS)
    for t in range(begin, end):
        j = t - begin
        stage = j % STAGES
        at, inside = gl.expand_dims(block.to(gl.int64) * stride_n, 1) + inner, gl.expand_dims(live, 1)
        mbarrier.wait(empty.index(stage), ((j // STAGES) & 1) ^ 1)
        k_tiles.index(stage).store(_widened(k_base, at, inside, TO))
        v_tiles.index(stage).store(_widened(v_base, at, inside, TO))
        block, live = _blocks(table, t + 1, first, context, key, B, KEYS)
        fence_async_shared()
        barrier()
        mbarrier.arrive(full.index(stage))


@gluon.jit
def copy_tiles(
    k_base, v_base, table, begin, end, first, context, stride_n, stride_b, k_desc, v_desc, kv_head, k_tiles, v_tiles,
    full, empty, B: gl.constexpr, UNIT: gl.constexpr,
):  # fmt: skip
    """Keep the stages filled: the program of the copying warps."""
    STAGES: gl.constexpr = k_tiles.shape[0]
    KEYS: gl.constexpr = k_tiles.shape[1]
    D: gl.constexpr = k_tiles.shape[2]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])  # 16 bytes a thread
    key = gl.arange(0, KEYS, layout=gl.SliceLayout(1, layout))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    inner = gl.expand_dims(key % B * stride_b, 1) + gl.expand_dims(d, 0)  # places within a block, 32 bits
    if UNIT:
        for t in range(begin, end):
            j = t - begin
            stage = j % STAGES
            mbarrier.wait(empty.index(stage), ((j // STAGES) & 1) ^ 1)
            arrived, k_tile, v_tile = full.index(stage), k_tiles.index(stage), v_tiles.index(stage)
            if (t * KEYS >= first) & (t * KEYS + KEYS <= context):
                mbarrier.expect(arrived, 2 * KEYS * D * 2)
                for b in gl.static_range(KEYS // B):
                    at = gl.load(table + t * (KEYS // B) + b) * B
                    tma.async_copy_global_to_shared(k_desc, [at, kv_head * D], arrived, k_tile.slice(b * B, B))
                    tma.async_copy_global_to_shared(v_desc, [at, kv_head * D], arrived, v_tile.slice(b * B, B))
            else:
                block, live = _blocks(table, t, first, context, key, B, KEYS)
                rows, inside = gl.expand_dims(block.to(gl.int64) * stride_n, 1) + inner, gl.expand_dims(live, 1)
                async_copy.async_copy_global_to_shared(k_tile, k_base + rows, mask=inside)
                async_copy.async_copy_global_to_shared(v_tile, v_base + rows, mask=inside)
                async_copy.commit_group()
                async_copy.wait_group(0)
                fence_async_shared()
                barrier()
                mbarrier.arrive(arrived)
    elif k_base.dtype.element_ty == gl.float8e4nv:
        _widen_tiles(
            k_base, v_base, table, begin, end, first, context, stride_n, stride_b, k_tiles, v_tiles, full, empty, B
        )  # fmt: skip
    else:
        block, live = _blocks(table, begin, first, context, key, B, KEYS)
        for t in range(begin, end):
            j = t - begin
            stage = j % STAGES
            mbarrier.wait(empty.index(stage), ((j // STAGES) & 1) ^ 1)
            rows, inside = gl.expand_dims(block.to(gl.int64) * stride_n, 1) + inner, gl.expand_dims(live, 1)
            async_copy.async_copy_global_to_shared(k_tiles.index(stage), k_base + rows, mask=inside)  # zeros outside
            async_copy.async_copy_global_to_shared(v_tiles.index(stage), v_base + rows, mask=inside)
            async_copy.commit_group()
            block, live = _blocks(table, t + 1, first, context, key, B, KEYS)
            async_copy.wait_group(0)
            fence_async_shared()  # each thread for its own copies; the barrier then speaks for all of them
            barrier()
            mbarrier.arrive(full.index(stage))
