"""Product with weights of 4 bits for Hopper GPUs, up to 256 rows: words come from memory as the tensor cores want them.

The copy unit keeps stages of words, scales and inputs filled far ahead. A thread takes 16 bytes of words from there,
makes codes less their zeros of them in registers, which are the very fragments that a warpgroup's product of 64 outputs
takes (see `grouped_words.fragments`), and scales each group's sums: no weight is rounded, nothing changes threads. So
Marlin (Frantar et al. 2024) does it with smaller instructions. `grouped_linear` takes this kernel; the interpreter
knows no Gluon, so it is tested on the card.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment,misc"
import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels import dispatch
from kernels.grouped_copy import ask_for_inputs, fill_inputs, fill_weights, keep_filled, launch_dependents
from kernels.grouped_numbers import numbers_of, scales_of, upper_half, words_of
from kernels.grouped_tiles import MAX_SPLIT, Tile, registers, tile_for
from kernels.grouped_weight import GroupedWeight
from kernels.grouped_words import FRAGMENT_BLOCK, FRAGMENT_ROWS
from kernels.hopper_barrier import barrier
from kernels.language import cdiv

_COPY_REGISTERS = gl.constexpr(24)
_PARTS = gl.constexpr(MAX_SPLIT)


def launch(x: Tensor, weight: GroupedWeight, bias: Tensor | None, tile: Tile | None = None) -> Tensor:
    """Multiply rows of 16 bits, 1 to 256, with a weight that lies in fragments."""
    (T, E), F = x.shape, weight.shape[0]
    if x.stride(1) != 1 or x.stride(0) % 8 or x.data_ptr() % 16:  # the copy unit wants 16 bytes
        x = x.clone(memory_format=torch.contiguous_format)
    out = torch.empty((T, F), dtype=x.dtype, device=x.device)
    groups, repeats, tokens, together, stages, split, copies = tile or tile_for(
        T, weight, dispatch.processors(x, elsewhere=132)
    )
    outputs, blocks, spans = FRAGMENT_ROWS * groups * repeats, cdiv(E, FRAGMENT_BLOCK), weight.spans
    spans_a_group = weight.group * spans // FRAGMENT_BLOCK
    kind = gl.bfloat16 if x.dtype == torch.bfloat16 else gl.float16
    x_block = [tokens, FRAGMENT_BLOCK // spans]
    flat = gl.NVMMASharedLayout(0, 32, 2)
    tiles, token_tiles = cdiv(F, outputs), cdiv(T, tokens)
    partial = x
    if split > 1:
        partial = x.new_empty((tiles * token_tiles, split, outputs, tokens), dtype=torch.float32)
    scale_rows = together * spans if spans_a_group == 1 else 1
    _grouped_hopper_kernel[(token_tiles, tiles, split)](
        TensorDescriptor.from_tensor(x, x_block, gl.NVMMASharedLayout.get_default_for(x_block, kind)),
        TensorDescriptor.from_tensor(weight.words.view(-1, 256), [4 * together, 256], flat),
        # A single row of scales may have any stride.
        TensorDescriptor(weight.scales, list(weight.scales.shape), [F, 1], [scale_rows, FRAGMENT_ROWS * groups], flat),
        out if bias is None else bias, out, partial, weight.arrived, T, F, blocks, spans_a_group, split,
        GROUPS=groups, REPEATS=repeats, BLOCKS=together, STAGES=stages, SPANS=spans, BRAIN=x.dtype == torch.bfloat16,
        BRAIN_SCALES=weight.scale == torch.bfloat16, BIAS=bias is not None, SPLIT=split > 1, COPIES=copies,
        num_warps=4 * groups, launch_pdl=True, **registers(groups, tokens * repeats, copies),
    )  # fmt: skip
    return out


@gluon.jit(do_not_specialize=["T"])  # it changes from step to step
def _grouped_hopper_kernel(
    x_desc, word_desc, scale_desc, bias_ptr, out_ptr, partial_ptr, arrived_ptr, T, F, blocks, spans_a_group, split,
    GROUPS: gl.constexpr, REPEATS: gl.constexpr, BLOCKS: gl.constexpr, STAGES: gl.constexpr, SPANS: gl.constexpr,
    BRAIN: gl.constexpr, BRAIN_SCALES: gl.constexpr, BIAS: gl.constexpr, SPLIT: gl.constexpr, COPIES: gl.constexpr,
):  # fmt: skip
    TOKENS: gl.constexpr = x_desc.block_shape[0]
    OUTPUTS: gl.constexpr = 64 * GROUPS
    EACH: gl.constexpr = BLOCKS * SPANS
    BYTES: gl.constexpr = (OUTPUTS * REPEATS * (64 + 4 * SPANS) + TOKENS * 256) * BLOCKS
    words = gl.allocate_shared_memory(gl.int32, [STAGES * REPEATS, 4 * GROUPS * BLOCKS, 256], word_desc.layout)
    scales = gl.allocate_shared_memory(gl.int32, [STAGES * REPEATS, EACH, OUTPUTS], scale_desc.layout)
    inputs = gl.allocate_shared_memory(x_desc.dtype, [STAGES * EACH, TOKENS, 128 // SPANS], x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for early in gl.static_range(STAGES):
        mbarrier.init(full.index(early), count=1)
    empty = full  # of no use
    if COPIES:
        empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for early in gl.static_range(STAGES):
            mbarrier.init(empty.index(early), count=1)
    tile, part = gl.program_id(1), gl.program_id(2)
    all_steps = gl.cdiv(blocks, BLOCKS)
    first = all_steps * part // split
    steps = all_steps * (part + 1) // split - first
    launch_dependents()
    for early in gl.static_range(STAGES):
        if early < steps:
            fill_weights(
                word_desc, scale_desc, words, scales, full, early, (first + early) * BLOCKS, tile, blocks,
                spans_a_group, GROUPS, REPEATS, SPANS, BYTES,
            )  # fmt: skip
    if COPIES:
        gl.warp_specialize(
            [
                (_multiply, (
                    x_desc, word_desc, scale_desc, words, scales, inputs, full, empty, first, steps, tile, T, bias_ptr,
                    out_ptr, partial_ptr, arrived_ptr, F, blocks, spans_a_group, split, GROUPS, REPEATS, BLOCKS, STAGES,
                    SPANS, BRAIN, BRAIN_SCALES, BIAS, SPLIT, COPIES, BYTES,
                )),
                (keep_filled, (
                    x_desc, word_desc, scale_desc, words, scales, inputs, full, empty, first, steps, tile, blocks,
                    spans_a_group, GROUPS, REPEATS, BLOCKS, STAGES, SPANS, BYTES,
                )),
            ],
            [1],
            [_COPY_REGISTERS],
        )  # fmt: skip
    else:
        ask_for_inputs(x_desc, inputs, full, first, steps, BLOCKS, STAGES, EACH)
        _multiply(
            x_desc, word_desc, scale_desc, words, scales, inputs, full, empty, first, steps, tile, T, bias_ptr, out_ptr,
            partial_ptr, arrived_ptr, F, blocks, spans_a_group, split, GROUPS, REPEATS, BLOCKS, STAGES, SPANS, BRAIN,
            BRAIN_SCALES, BIAS, SPLIT, COPIES, BYTES,
        )  # fmt: skip


@gluon.jit
def _multiply(
    x_desc, word_desc, scale_desc, words, scales, inputs, full, empty, first, steps, tile, T, bias_ptr, out_ptr,
    partial_ptr, arrived_ptr, F, blocks, spans_a_group, split,
    GROUPS: gl.constexpr, REPEATS: gl.constexpr, BLOCKS: gl.constexpr, STAGES: gl.constexpr, SPANS: gl.constexpr,
    BRAIN: gl.constexpr, BRAIN_SCALES: gl.constexpr, BIAS: gl.constexpr, SPLIT: gl.constexpr, COPIES: gl.constexpr,
    BYTES: gl.constexpr,
):  # fmt: skip
    """Multiply and store: the program of the multiplying warps."""
    TOKENS: gl.constexpr = inputs.shape[1]
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4 * GROUPS, 1], [16, TOKENS, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    nothing = gl.zeros([64 * GROUPS, TOKENS], gl.float32, layout=acc_layout)
    acc = ()
    for _early in gl.static_range(REPEATS):
        acc += (nothing,)
    for step in range(steps):
        stage, phase = step % STAGES, (step // STAGES) & 1
        mbarrier.wait(full.index(stage), phase)
        acc = _add_stage(
            acc, nothing, words, scales, inputs, stage, GROUPS, REPEATS, BLOCKS, SPANS, BRAIN, BRAIN_SCALES, a_layout
        )  # fmt: skip
        barrier()
        if COPIES:
            mbarrier.arrive(empty.index(stage))
        elif step + STAGES < steps:
            at = (first + step + STAGES) * BLOCKS
            fill_weights(
                word_desc, scale_desc, words, scales, full, stage, at, tile, blocks, spans_a_group, GROUPS, REPEATS,
                SPANS, BYTES,
            )  # fmt: skip
            fill_inputs(x_desc, inputs, full, stage, at, BLOCKS * SPANS)
    for late in gl.static_range(REPEATS):
        _store(acc[late], late, tile, T, bias_ptr, out_ptr, partial_ptr, arrived_ptr, F, split, REPEATS, BIAS, SPLIT)


@gluon.jit
def _add_stage(
    acc, nothing, words, scales, inputs, stage, GROUPS: gl.constexpr, REPEATS: gl.constexpr, BLOCKS: gl.constexpr,
    SPANS: gl.constexpr, BRAIN: gl.constexpr, BRAIN_SCALES: gl.constexpr, A_LAYOUT: gl.constexpr,
):  # fmt: skip
    """Return `acc`, a tile for each repeat, plus the products of a stage."""
    EACH: gl.constexpr = BLOCKS * SPANS
    UNITS: gl.constexpr = BLOCKS * REPEATS
    ACC_LAYOUT: gl.constexpr = nothing.type.layout
    held = ()
    for r in gl.static_range(REPEATS):
        held += words_of(words.index(stage * REPEATS + r), GROUPS, BLOCKS, A_LAYOUT)
    units = scales_of(scales.index(stage * REPEATS), 0, GROUPS, SPANS)
    numbers = numbers_of(held[0], units, SPANS, BRAIN, A_LAYOUT)
    for unit in gl.static_range(UNITS):
        following, following_units = numbers, units
        for span in gl.static_range(SPANS):
            x = inputs.index(stage * EACH + unit % BLOCKS * SPANS + span).permute((1, 0))
            product = warpgroup_mma(numbers[span], x, nothing, use_acc=False, is_async=True)
            if span == SPANS - 1 and unit < UNITS - 1:
                following_units = scales_of(
                    scales.index(stage * REPEATS + (unit + 1) // BLOCKS), (unit + 1) % BLOCKS, GROUPS, SPANS
                )
                following = numbers_of(held[unit + 1], following_units, SPANS, BRAIN, A_LAYOUT)
                sums, following = _await(product, numbers, following, SPANS)
            else:
                sums, _used = warpgroup_mma_wait(0, deps=[product, numbers[span]])
            held_units = units
            if REPEATS * inputs.shape[1] > 64:  # too few registers to hold them until here
                held_units = scales_of(scales.index(stage * REPEATS + unit // BLOCKS), unit % BLOCKS, GROUPS, SPANS)
            scale = upper_half(held_units[span], BRAIN_SCALES, ACC_LAYOUT)
            acc = _replaced(acc, unit // BLOCKS, acc[unit // BLOCKS] + sums * scale, REPEATS)
        numbers, units = following, following_units
    return acc


@gluon.jit
def _await(product, numbers, following, SPANS: gl.constexpr):
    """Wait for a product; it holds its numbers until then."""
    if SPANS == 1:
        sums, _used, a = warpgroup_mma_wait(0, deps=[product, numbers[0], following[0]])
        found = (a,)
    elif SPANS == 2:
        sums, _used, a, b = warpgroup_mma_wait(0, deps=[product, numbers[1], following[0], following[1]])
        found = (a, b)
    else:
        sums, _used, a, b, c, d = warpgroup_mma_wait(
            0, deps=[product, numbers[3], following[0], following[1], following[2], following[3]]
        )
        found = (a, b, c, d)
    return sums, found


@gluon.jit
def _replaced(values, r: gl.constexpr, value, REPEATS: gl.constexpr):
    """Return `values` with another one at `r`."""
    found = ()
    for i in gl.static_range(REPEATS):
        found += (value if i == r else values[i],)
    return found


@gluon.jit
def _store(
    acc, r: gl.constexpr, tile, T, bias_ptr, out_ptr, partial_ptr, arrived_ptr, F, split,
    REPEATS: gl.constexpr, BIAS: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    """Store outputs of a tile; of parts of a sum the last program to arrive does, and adds them in their order."""
    OUTPUTS: gl.constexpr = acc.shape[0]
    TOKENS: gl.constexpr = acc.shape[1]
    layout: gl.constexpr = acc.type.layout
    last = True
    if SPLIT:
        place = tile * gl.num_programs(0) + gl.program_id(0)
        SIZE: gl.constexpr = OUTPUTS * TOKENS
        inside = gl.expand_dims(gl.arange(0, OUTPUTS, layout=gl.SliceLayout(1, layout)) * TOKENS, 1)
        inside = inside + gl.expand_dims(gl.arange(0, TOKENS, layout=gl.SliceLayout(0, layout)), 0)
        to = partial_ptr + (place * split * REPEATS + r).to(gl.int64) * SIZE + inside
        gl.store(to + gl.program_id(2) * (REPEATS * SIZE), acc)
        barrier()
        counter = arrived_ptr + place * REPEATS + r
        last = gl.atomic_add(counter, 1, sem="acq_rel") == split - 1
    if last:
        if SPLIT:
            gl.store(counter, 0)
            acc = gl.load(to, cache_modifier=".cg")
            if TOKENS <= 32:  # a loop would wait for each; registers hold all
                for part in gl.static_range(1, _PARTS):
                    acc += gl.load(to + part * (REPEATS * SIZE), mask=part < split, other=0.0, cache_modifier=".cg")
            else:
                for part in range(1, split):
                    acc += gl.load(to + part * (REPEATS * SIZE), cache_modifier=".cg")
        output = (tile * REPEATS + r) * OUTPUTS
        if BIAS:
            row = output + gl.arange(0, OUTPUTS, layout=gl.SliceLayout(1, layout))
            acc += gl.expand_dims(gl.load(bias_ptr + row, mask=row < F, other=0.0).to(gl.float32), 1)
        # Eight neighbouring outputs of a token in a thread: 16 bytes at once.
        LANES: gl.constexpr = OUTPUTS // 8
        wide: gl.constexpr = gl.BlockedLayout([8, 1], [LANES, 32 // LANES], [1, gl.num_warps()], [0, 1])
        numbers = gl.convert_layout(acc.to(out_ptr.dtype.element_ty), wide)
        row = gl.expand_dims(output + gl.arange(0, OUTPUTS, layout=gl.SliceLayout(1, wide)), 1)
        token = gl.program_id(0) * TOKENS + gl.arange(0, TOKENS, layout=gl.SliceLayout(0, wide))
        token = gl.expand_dims(token, 0)
        gl.store(out_ptr + token.to(gl.int64) * F + row, numbers, mask=(token < T) & (row < F))
