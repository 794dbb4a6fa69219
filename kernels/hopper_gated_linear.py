"""A gated product for Hopper GPUs: gate and up in one pass over x, gated where the sums lie; only act(g) * u leaves.

Written in Gluon, Triton's lower level. A program goes from tile to tile: four warps ask the copy unit for tiles of x
and of both halves of the weight, two warpgroups of four multiply 64 rows each by 128 columns of gate and 128 of up in
one instruction, and while they gate and store, the next tile's inputs arrive. The interpreter knows no Gluon, so this
file is tested on the card alone.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
import math

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels import dispatch
from kernels.activation import LIMIT, STEEPNESS
from kernels.hopper_barrier import barrier

ROWS, COLUMNS, DEPTH = 128, 128, 64
_STAGES = 4  # of 48 KB; the output's tiles take 32 KB more
_MULTIPLY_REGISTERS, _COPY_REGISTERS = 232, 40  # 128 threads x (2 x 232 + 40) fit the 65,536 of an SM

_LOG2_E, _INV_SQRT_2 = gl.constexpr(math.log2(math.e)), gl.constexpr(1 / math.sqrt(2))
_TWO_SQRT_2_OVER_PI = gl.constexpr(2 * math.sqrt(2 / math.pi))
_LIMIT, _STEEPNESS = gl.constexpr(LIMIT), gl.constexpr(STEEPNESS)


def launch(x: Tensor, weight: Tensor, act: int, out: Tensor) -> None:
    """Write act(x G^T) * (x U^T) to `out` [T, F]; `weight` is [2F, E]: G, then U."""
    (T, E), F = x.shape, out.shape[1]
    kind = gl.bfloat16 if x.dtype == torch.bfloat16 else gl.float16
    tiles = [
        TensorDescriptor.from_tensor(tensor, list(block), gl.NVMMASharedLayout.get_default_for(list(block), kind))
        for tensor, block in ((x, (ROWS, DEPTH)), (weight, (COLUMNS, DEPTH)), (out, (ROWS // 2, COLUMNS)))
    ]
    num_programs = dispatch.processors(x, elsewhere=132)
    row_tiles, column_tiles = -(-T // ROWS), F // COLUMNS
    # As many row tiles in a band as keep x and the weights that a wave of programs reads in the L2 cache.
    _hopper_gated_linear_kernel[(min(num_programs, row_tiles * column_tiles),)](
        *tiles, row_tiles, column_tiles, F, E // DEPTH, BAND=8 if row_tiles <= 16 else 16, ACT=act,
        REGISTERS=_MULTIPLY_REGISTERS, COPY_REGISTERS=_COPY_REGISTERS, STAGES=_STAGES, num_warps=4,
    )  # fmt: skip


@gluon.jit
def _place(tile, row_tiles, column_tiles, BAND: gl.constexpr):
    """Row and column of a tile: BAND rows of tiles, column after column."""
    band = tile // (BAND * column_tiles)
    height = gl.minimum(row_tiles - band * BAND, BAND)
    within = tile - band * (BAND * column_tiles)
    return band * BAND + within % height, within // height


@gluon.jit
def _copy(
    x_desc, weight_desc, x_tiles, weight_tiles, full, empty, row_tiles, column_tiles, up_at, steps, BAND: gl.constexpr
):  # fmt: skip
    """Keep the stages filled: the program of the copying warps."""
    STAGES: gl.constexpr = x_tiles.shape[0]
    ROWS: gl.constexpr = x_tiles.shape[1]
    DEPTH: gl.constexpr = x_tiles.shape[2]
    COLUMNS: gl.constexpr = weight_tiles.shape[1] // 2
    j = 0
    for tile in range(gl.program_id(0), row_tiles * column_tiles, gl.num_programs(0)):
        row, column = _place(tile, row_tiles, column_tiles, BAND)
        for step in range(steps):
            stage = j % STAGES
            mbarrier.wait(empty.index(stage), ((j // STAGES) & 1) ^ 1)
            arrived, target = full.index(stage), weight_tiles.index(stage)
            mbarrier.expect(arrived, (ROWS + 2 * COLUMNS) * DEPTH * 2)
            at = step * DEPTH
            tma.async_copy_global_to_shared(x_desc, [row * ROWS, at], arrived, x_tiles.index(stage))
            gate = target.slice(0, COLUMNS)
            tma.async_copy_global_to_shared(weight_desc, [column * COLUMNS, at], arrived, gate)
            up = target.slice(COLUMNS, COLUMNS)
            tma.async_copy_global_to_shared(weight_desc, [up_at + column * COLUMNS, at], arrived, up)
            j += 1


@gluon.jit
def _gate(gate, up, ACT: gl.constexpr):
    if ACT == 0:
        gate = gate / (1 + gl.exp2(gate * -_LOG2_E))
    elif ACT == 1:
        gate = 0.5 * gate * (1 + gl.erf(gate * _INV_SQRT_2))
    elif ACT == 2:  # 0.5 (1 + tanh u) = sigmoid(2u)
        inner = (gate + 0.044715 * gate * gate * gate) * _TWO_SQRT_2_OVER_PI
        gate = gate / (1 + gl.exp2(inner * -_LOG2_E))
    else:
        gate = gl.where(gate > _LIMIT, _LIMIT, gate)
        up = gl.where(up > _LIMIT, _LIMIT, gl.where(up < -_LIMIT, -_LIMIT, up)) + 1
        gate = gate / (1 + gl.exp2(gate * (-_STEEPNESS * _LOG2_E)))
    return gate * up


@gluon.jit
def _multiply(
    out_desc, x_tiles, weight_tiles, out_tiles, full, empty, row_tiles, column_tiles, steps,
    GROUP: gl.constexpr, BAND: gl.constexpr, ACT: gl.constexpr,
):  # fmt: skip
    """Multiply, gate and store 64 of each tile's rows: the program of a multiplying warpgroup."""
    STAGES: gl.constexpr = x_tiles.shape[0]
    HALF: gl.constexpr = x_tiles.shape[1] // 2
    COLUMNS: gl.constexpr = weight_tiles.shape[1] // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * COLUMNS, 16])
    out_tile = out_tiles.index(GROUP)
    j = 0
    for tile in range(gl.program_id(0), row_tiles * column_tiles, gl.num_programs(0)):
        row, column = _place(tile, row_tiles, column_tiles, BAND)
        acc = gl.zeros([HALF, 2 * COLUMNS], gl.float32, layout=layout)
        for step in range(steps):
            stage = j % STAGES
            mbarrier.wait(full.index(stage), (j // STAGES) & 1)
            x = x_tiles.index(stage).slice(GROUP * HALF, HALF)
            acc = warpgroup_mma(x, weight_tiles.index(stage).permute((1, 0)), acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])  # the one before is done
            if step > 0:
                barrier()
                mbarrier.arrive(empty.index((j - 1) % STAGES))
            j += 1
        acc = warpgroup_mma_wait(0, deps=[acc])
        barrier()
        mbarrier.arrive(empty.index((j - 1) % STAGES))
        gate, up = acc.reshape([HALF, 2, COLUMNS]).permute((0, 2, 1)).split()  # both lie in the same thread
        gated = _gate(gate, up, ACT)
        tma.store_wait(0)
        barrier()
        out_tile.store(gated.to(out_tile.dtype))
        fence_async_shared()
        barrier()
        tma.async_copy_shared_to_global(out_desc, [row * (2 * HALF) + GROUP * HALF, column * COLUMNS], out_tile)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["row_tiles"])
def _hopper_gated_linear_kernel(
    x_desc, weight_desc, out_desc, row_tiles, column_tiles, up_at, steps,
    BAND: gl.constexpr, ACT: gl.constexpr, REGISTERS: gl.constexpr, COPY_REGISTERS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = x_desc.dtype
    ROWS: gl.constexpr = x_desc.block_shape[0]
    DEPTH: gl.constexpr = x_desc.block_shape[1]
    COLUMNS: gl.constexpr = weight_desc.block_shape[0]
    x_tiles = gl.allocate_shared_memory(dtype, [STAGES, ROWS, DEPTH], x_desc.layout)
    weight_tiles = gl.allocate_shared_memory(dtype, [STAGES, 2 * COLUMNS, DEPTH], weight_desc.layout)
    out_tiles = gl.allocate_shared_memory(dtype, [2, ROWS // 2, COLUMNS], out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)  # both warpgroups must be done with it
    gl.warp_specialize(
        [
            (_multiply, (
                out_desc, x_tiles, weight_tiles, out_tiles, full, empty, row_tiles, column_tiles, steps, 0, BAND, ACT,
            )),
            (_multiply, (
                out_desc, x_tiles, weight_tiles, out_tiles, full, empty, row_tiles, column_tiles, steps, 1, BAND, ACT,
            )),
            (_copy, (
                x_desc, weight_desc, x_tiles, weight_tiles, full, empty, row_tiles, column_tiles, up_at, steps, BAND,
            )),
        ],
        [4, 4],
        [REGISTERS, COPY_REGISTERS],
    )  # fmt: skip
    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(stage))
        mbarrier.invalidate(empty.index(stage))
