"""The copying warp of products with 4 bit weights: it keeps the stages of words, scales and inputs filled.

Words and scales do not depend on the kernel before: they are asked for before it has ended, inputs behind it.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma


@gluon.jit
def fill_weights(
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
def fill_inputs(x_desc, inputs, full, stage, block, EACH: gl.constexpr):
    """Ask for the inputs of a stage, EACH runs of a span's."""
    TOKENS: gl.constexpr = inputs.shape[1]
    DEPTH: gl.constexpr = inputs.shape[2]
    for i in gl.static_range(EACH):
        at = [gl.program_id(0) * TOKENS, block * 128 + i * DEPTH]
        tma.async_copy_global_to_shared(x_desc, at, full.index(stage), inputs.index(stage * EACH + i))


@gluon.jit
def ask_for_inputs(
    x_desc, inputs, full, first, steps, BLOCKS: gl.constexpr, STAGES: gl.constexpr, EACH: gl.constexpr
):  # fmt: skip
    """Ask for the inputs of all stages, once the kernel before has written them."""
    wait_for_inputs()
    for early in gl.static_range(STAGES):
        if early < steps:
            fill_inputs(x_desc, inputs, full, early, (first + early) * BLOCKS, EACH)


@gluon.jit
def keep_filled(
    x_desc, word_desc, scale_desc, words, scales, inputs, full, empty, first, steps, tile, blocks, spans_a_group,
    GROUPS: gl.constexpr, REPEATS: gl.constexpr, BLOCKS: gl.constexpr, STAGES: gl.constexpr, SPANS: gl.constexpr,
    BYTES: gl.constexpr,
):  # fmt: skip
    """Keep the stages filled: the program of the copying warp."""
    ask_for_inputs(x_desc, inputs, full, first, steps, BLOCKS, STAGES, BLOCKS * SPANS)
    for step in range(STAGES, steps):
        stage, at = step % STAGES, (first + step) * BLOCKS
        mbarrier.wait(empty.index(stage), (step // STAGES - 1) & 1)
        fill_weights(
            word_desc, scale_desc, words, scales, full, stage, at, tile, blocks, spans_a_group, GROUPS, REPEATS, SPANS,
            BYTES,
        )  # fmt: skip
        fill_inputs(x_desc, inputs, full, stage, at, BLOCKS * SPANS)


@gluon.jit
def launch_dependents():
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def wait_for_inputs():
    gl.inline_asm_elementwise("griddepcontrol.wait; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
