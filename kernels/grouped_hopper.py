"""Product with weights of 4 bits for Hopper GPUs, up to 256 rows: words come from memory as the tensor cores want them.

The copy unit keeps stages of words, scales and inputs filled far ahead. A thread takes 16 bytes of words from there,
makes codes less their zeros of them in registers, which are the very fragments that a warpgroup's product of 64 outputs
takes (see `grouped_words.fragments`), and scales each group's sums: no weight is rounded, nothing changes threads. So
Marlin (Frantar et al. 2024) does it with smaller instructions. `grouped_linear` takes this kernel; the interpreter
knows no Gluon, so it is tested on the card.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment,misc"
from typing import NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels import dispatch
from kernels.grouped_weight import GroupedWeight
from kernels.grouped_words import FRAGMENT_BLOCK, FRAGMENT_ROWS
from kernels.language import cdiv, next_power_of_2

_barrier = getattr(gl, "thread_barrier", None) or gl.barrier  # renamed between Triton 3.6 and 3.9


_COPY_REGISTERS = gl.constexpr(24)
_MAX_SPLIT = 8
_PARTS = gl.constexpr(_MAX_SPLIT)


class Tile(NamedTuple):
    """64 x `groups` x `repeats` outputs and `tokens` rows a tile, by `groups` warpgroups; blocks of a stage; stages;
    parts of the sum; whether a warp of its own copies, or all between products."""

    groups: int
    repeats: int
    tokens: int
    blocks: int
    stages: int
    split: int
    copies: bool


def tile_for(T: int, weight: GroupedWeight, processors: int) -> Tile:
    """As an H200 wants it: parts of the sum as long as a processor holds all warpgroups at once and each has steps."""
    tokens, (F, E) = min(max(8, next_power_of_2(T)), 128), weight.shape
    # Many outputs: more of them share inputs, but for short groups, which need the registers.
    wide = 2 * FRAGMENT_ROWS * processors <= F and weight.spans == 1
    groups, repeats, stages = {
        8: (2, 1, 4), 16: (2, 1, 4), 32: (2 if wide else 1, 1, 3), 64: (2, 2, 2) if wide else (2, 1, 3), 128: (2, 1, 2)
    }[tokens]  # fmt: skip
    warpgroups = cdiv(F, FRAGMENT_ROWS * groups * repeats) * groups * cdiv(T, tokens)
    held, steps, split = processors * (4 if tokens <= 16 else 2), cdiv(E, 2 * FRAGMENT_BLOCK), 1
    while split < _MAX_SPLIT and 2 * split * warpgroups <= held and steps >= 4 * split:
        split *= 2
    # No more stages than steps: the next kernel's weights come where this one's shared memory leaves room.
    return Tile(groups, repeats, tokens, 2, min(stages, cdiv(steps, split)), split, copies=True)


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
        num_warps=4 * groups, launch_pdl=True, **_registers(groups, tokens * repeats, copies),
    )  # fmt: skip
    return out


def _registers(groups: int, numbers: int, copies: bool) -> dict[str, int]:
    """Return registers of each thread on entry; with a copying warp they are not the assembler's choice."""
    if not copies or numbers > 64:
        return {}
    return {"maxnreg": (64 if numbers <= 16 else 96) if groups == 1 else (80 if numbers <= 32 else 128)}


@gluon.jit
def _fill_weights(
    word_desc, scale_desc, words, scales, full, stage, block, tile, blocks, spans_a_group,
    GROUPS: gl.constexpr, REPEATS: gl.constexpr, SPANS: gl.constexpr, BYTES: gl.constexpr,
):  # fmt: skip
    """Ask for the words and scales of a stage's blocks; the inputs' bytes are expected with them."""
    HEIGHT: gl.constexpr = word_desc.block_shape[0]
    SCALE_ROWS: gl.constexpr = scale_desc.block_shape[0]
    arrived = full.index(stage)
    mbarrier.expect(arrived, BYTES)
    for r in gl.static_range(REPEATS):
        for g in gl.static_range(GROUPS):
            row = ((tile * (REPEATS * GROUPS) + r * GROUPS + g) * blocks + block) * 4
            to = words.index(stage * REPEATS + r).slice(g * HEIGHT, HEIGHT)
            tma.async_copy_global_to_shared(word_desc, [row, 0], arrived, to)
        for i in gl.static_range(scales.shape[1] // SCALE_ROWS):
            group = (block * SPANS + i) // spans_a_group
            to = scales.index(stage * REPEATS + r).slice(i * SCALE_ROWS, SCALE_ROWS)
            tma.async_copy_global_to_shared(scale_desc, [group, (tile * REPEATS + r) * (64 * GROUPS)], arrived, to)


@gluon.jit
def _fill_inputs(x_desc, inputs, full, stage, block, EACH: gl.constexpr):
    """Ask for the inputs of a stage, EACH runs of a span's."""
    TOKENS: gl.constexpr = inputs.shape[1]
    DEPTH: gl.constexpr = inputs.shape[2]
    for i in gl.static_range(EACH):
        at = [gl.program_id(0) * TOKENS, block * 128 + i * DEPTH]
        tma.async_copy_global_to_shared(x_desc, at, full.index(stage), inputs.index(stage * EACH + i))


@gluon.jit
def _words(words, GROUPS: gl.constexpr, BLOCKS: gl.constexpr, A_LAYOUT: gl.constexpr):
    """Return a stage's words of each block, [outputs, 16], where the tensor cores want what is made of them."""
    # Thread t of a warpgroup holds words 4 t to 4 t + 3 of both halves of 4 KB of words.
    layout: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [2, 0]] if BLOCKS == 1 else [[0, 1], [0, 2], [2, 0], [4, 0]],
        [[0, 4], [0, 8], [0, 16], [0, 32], [0, 64]],
        [[0, 128], [1, 0]] if GROUPS == 1 else [[0, 128], [1, 0], [4 * BLOCKS, 0]],
        [],
        [4 * GROUPS * BLOCKS, 256],
    )
    held = words.load(layout).reshape([GROUPS, BLOCKS, 2, 4, 8, 4, 2, 2]).permute((0, 3, 6, 4, 2, 5, 7, 1))
    if BLOCKS == 1:
        found = (gl.convert_layout(held.reshape([64 * GROUPS, 16]), A_LAYOUT, assert_trivial=True),)
    else:
        a, b = held.reshape([64 * GROUPS, 16, 2]).split()
        found = (
            gl.convert_layout(a, A_LAYOUT, assert_trivial=True), gl.convert_layout(b, A_LAYOUT, assert_trivial=True)
        )  # fmt: skip
    return found


@gluon.jit
def _scales(scales, block: gl.constexpr, GROUPS: gl.constexpr, SPANS: gl.constexpr):
    """Return scales with zeros, [outputs, 1] for each span of a block: a thread has those of its outputs."""
    # The memory itself is not permuted: Triton 3.6 forgets that of a layout without swizzle.
    layout: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 8]],
        [[0, 0], [0, 0], [0, 1], [0, 2], [0, 4]],
        [[0, 16], [0, 32]] if GROUPS == 1 else [[0, 16], [0, 32], [0, 64]],
        [],
        [1, 64 * GROUPS],
    )
    found = ()
    for span in gl.static_range(SPANS):
        found += (scales.slice(block * SPANS + span, 1).load(layout).permute((1, 0)),)
    return found


@gluon.jit
def _numbers(held, scales, SPANS: gl.constexpr, BRAIN: gl.constexpr, A_LAYOUT: gl.constexpr):
    """Return codes less zeros, [outputs, inputs] for each span, as a product takes them from registers."""
    above = ()
    for span in gl.static_range(SPANS):
        zero = gl.convert_layout(scales[span], A_LAYOUT, assert_trivial=True) & 0xFFFF
        above += (zero * 0x00010001 + 0x43004300 if BRAIN else zero * 0x00100010 + 0x54005400,)
    if BRAIN:
        if SPANS == 1:
            p = gl.inline_asm_elementwise(_BRAIN_1, _EIGHT_1, [held, above[0]], (gl.bfloat16,) * 8, True, 2)
        elif SPANS == 2:
            p = gl.inline_asm_elementwise(_BRAIN_2, _EIGHT_2, [held, above[0], above[1]], (gl.bfloat16,) * 8, True, 2)
        else:
            p = gl.inline_asm_elementwise(
                _BRAIN_4, _EIGHT_4, [held, above[0], above[1], above[2], above[3]], (gl.bfloat16,) * 8, True, 2
            )
    elif SPANS == 1:
        p = gl.inline_asm_elementwise(_HALF_1, _EIGHT_1, [held, above[0]], (gl.float16,) * 8, True, 2)
    elif SPANS == 2:
        p = gl.inline_asm_elementwise(_HALF_2, _EIGHT_2, [held, above[0], above[1]], (gl.float16,) * 8, True, 2)
    else:
        p = gl.inline_asm_elementwise(
            _HALF_4, _EIGHT_4, [held, above[0], above[1], above[2], above[3]], (gl.float16,) * 8, True, 2
        )
    a, b, c, d = gl.join(p[0], p[1]), gl.join(p[2], p[3]), gl.join(p[4], p[5]), gl.join(p[6], p[7])
    if SPANS == 4:
        numbers = (_one(a, A_LAYOUT), _one(b, A_LAYOUT), _one(c, A_LAYOUT), _one(d, A_LAYOUT))
    elif SPANS == 2:
        numbers = (_one(gl.join(a, b), A_LAYOUT), _one(gl.join(c, d), A_LAYOUT))
    else:
        numbers = (_one(gl.join(gl.join(a, b), gl.join(c, d)), A_LAYOUT),)
    return numbers


@gluon.jit
def _one(parts, A_LAYOUT: gl.constexpr):
    """Bring parts [outputs, 16, 2, ...] of a span behind one another."""
    OUTPUTS: gl.constexpr = parts.shape[0]
    if len(parts.shape) == 3:
        parts = parts.permute((0, 2, 1))
    elif len(parts.shape) == 4:
        parts = parts.permute((0, 3, 2, 1))
    else:
        parts = parts.permute((0, 4, 3, 2, 1))
    return gl.convert_layout(parts.reshape([OUTPUTS, parts.numel // OUTPUTS]), A_LAYOUT, assert_trivial=True)


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
    _launch_dependents()
    for early in gl.static_range(STAGES):
        if early < steps:
            _fill_weights(
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
                (_copy, (
                    x_desc, word_desc, scale_desc, words, scales, inputs, full, empty, first, steps, tile, blocks,
                    spans_a_group, GROUPS, REPEATS, BLOCKS, STAGES, SPANS, BYTES,
                )),
            ],
            [1],
            [_COPY_REGISTERS],
        )  # fmt: skip
    else:
        _ask_for_inputs(x_desc, inputs, full, first, steps, BLOCKS, STAGES, EACH)
        _multiply(
            x_desc, word_desc, scale_desc, words, scales, inputs, full, empty, first, steps, tile, T, bias_ptr, out_ptr,
            partial_ptr, arrived_ptr, F, blocks, spans_a_group, split, GROUPS, REPEATS, BLOCKS, STAGES, SPANS, BRAIN,
            BRAIN_SCALES, BIAS, SPLIT, COPIES, BYTES,
        )  # fmt: skip


@gluon.jit
def _ask_for_inputs(
    x_desc, inputs, full, first, steps, BLOCKS: gl.constexpr, STAGES: gl.constexpr, EACH: gl.constexpr
):  # fmt: skip
    """Ask for the inputs of all stages, once the kernel before has written them."""
    _wait_for_inputs()
    for early in gl.static_range(STAGES):
        if early < steps:
            _fill_inputs(x_desc, inputs, full, early, (first + early) * BLOCKS, EACH)


@gluon.jit
def _copy(
    x_desc, word_desc, scale_desc, words, scales, inputs, full, empty, first, steps, tile, blocks, spans_a_group,
    GROUPS: gl.constexpr, REPEATS: gl.constexpr, BLOCKS: gl.constexpr, STAGES: gl.constexpr, SPANS: gl.constexpr,
    BYTES: gl.constexpr,
):  # fmt: skip
    """Keep the stages filled: the program of the copying warp."""
    _ask_for_inputs(x_desc, inputs, full, first, steps, BLOCKS, STAGES, BLOCKS * SPANS)
    for step in range(STAGES, steps):
        stage, at = step % STAGES, (first + step) * BLOCKS
        mbarrier.wait(empty.index(stage), (step // STAGES - 1) & 1)
        _fill_weights(
            word_desc, scale_desc, words, scales, full, stage, at, tile, blocks, spans_a_group, GROUPS, REPEATS, SPANS,
            BYTES,
        )  # fmt: skip
        _fill_inputs(x_desc, inputs, full, stage, at, BLOCKS * SPANS)


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
        _barrier()
        if COPIES:
            mbarrier.arrive(empty.index(stage))
        elif step + STAGES < steps:
            at = (first + step + STAGES) * BLOCKS
            _fill_weights(
                word_desc, scale_desc, words, scales, full, stage, at, tile, blocks, spans_a_group, GROUPS, REPEATS,
                SPANS, BYTES,
            )  # fmt: skip
            _fill_inputs(x_desc, inputs, full, stage, at, BLOCKS * SPANS)
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
        held += _words(words.index(stage * REPEATS + r), GROUPS, BLOCKS, A_LAYOUT)
    units = _scales(scales.index(stage * REPEATS), 0, GROUPS, SPANS)
    numbers = _numbers(held[0], units, SPANS, BRAIN, A_LAYOUT)
    for unit in gl.static_range(UNITS):
        following, following_units = numbers, units
        for span in gl.static_range(SPANS):
            x = inputs.index(stage * EACH + unit % BLOCKS * SPANS + span).permute((1, 0))
            product = warpgroup_mma(numbers[span], x, nothing, use_acc=False, is_async=True)
            if span == SPANS - 1 and unit < UNITS - 1:
                following_units = _scales(
                    scales.index(stage * REPEATS + (unit + 1) // BLOCKS), (unit + 1) % BLOCKS, GROUPS, SPANS
                )
                following = _numbers(held[unit + 1], following_units, SPANS, BRAIN, A_LAYOUT)
                sums, following = _await(product, numbers, following, SPANS)
            else:
                sums, _used = warpgroup_mma_wait(0, deps=[product, numbers[span]])
            held_units = units
            if REPEATS * inputs.shape[1] > 64:  # too few registers to hold them until here
                held_units = _scales(scales.index(stage * REPEATS + unit // BLOCKS), unit % BLOCKS, GROUPS, SPANS)
            scale = _scale(held_units[span], BRAIN_SCALES, ACC_LAYOUT)
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
def _scale(scales, BRAIN_SCALES: gl.constexpr, ACC_LAYOUT: gl.constexpr):
    """Return the upper 16 bits of each word, float32 [outputs, 1]."""
    held = gl.convert_layout(scales, ACC_LAYOUT, assert_trivial=True)
    if BRAIN_SCALES:
        scale = (held & -0x10000).to(gl.float32, bitcast=True)
    else:
        scale = (held >> 16).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    return scale


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
        _barrier()
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


@gluon.jit
def _launch_dependents():
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _wait_for_inputs():
    gl.inline_asm_elementwise("griddepcontrol.wait; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


def _assembly(spans: int, mask: str, magic: str, places: tuple[int, ...], pair: str) -> str:
    lines = []
    for part in range(8):
        move, place = ("shr.u32", places[part % 4]) if places[part % 4] >= 0 else ("shl.b32", -places[part % 4])
        lines.append(
            f"{move} t, ${8 + part // 4}, {place}; lop3.b32 t, t, {mask}, {magic}, 0xea; "
            f"sub.{pair} ${part}, t, ${10 + part * spans // 8 * 2};"
        )
    return "{ .reg .b32 t; " + " ".join(lines) + " }"


_EIGHT_1, _EIGHT_2, _EIGHT_4 = (gl.constexpr(",".join(["=&r"] * 8 + ["r"] * (2 + 2 * spans))) for spans in (1, 2, 4))
_BRAIN_1, _BRAIN_2, _BRAIN_4 = (
    gl.constexpr(_assembly(spans, "0x000f000f", "0x43004300", (0, 4, 8, 12), "bf16x2")) for spans in (1, 2, 4)
)
_HALF_1, _HALF_2, _HALF_4 = (
    gl.constexpr(_assembly(spans, "0x00f000f0", "0x54005400", (-4, 0, 4, 8), "f16x2")) for spans in (1, 2, 4)
)
