"""`expert_linear` on weights of 4 or 8 bits that stay so: all experts of a layer are one tall `GroupedWeight`.

As in `grouped_linear` codes less their zeros, which 16 bits hold exactly, go to the tensor cores from registers, and
each group's sum is scaled: no weight is rounded.
"""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels import activation, dispatch
from kernels.expert_order import ExpertOrder
from kernels.expert_tiles import (
    PackedTile,
    check_tokens,
    expert_by_expert,
    inside_and_after,
    num_tiles,
    packed_tile,
    store_tile,
    tile_of,
    weight_row,
)
from kernels.grouped_weight import GroupedWeight, scale_and_zero
from kernels.grouped_words import excess, parts, side_by_side
from kernels.language import cdiv, jit_alike, next_power_of_2, tl


def grouped_expert_linear(
    x: Tensor, weight: GroupedWeight, order: ExpertOrder, bias: Tensor | None = None, *, gather: bool,
    act: int | None = None,
) -> Tensor:  # fmt: skip
    """Return [P, F]: at each place of `order` its token times the transposed weight of its expert.

    `weight` [X * F, E] has the experts one after another, in rows, not in fragments. `bias` [X, F] is added, each
    expert's to its tokens. `x` is [P, E], in that order; with `gather` [T, E], from which the tokens are taken.
    With `act`, one of `activation`'s, the first half of the outputs are gates of the second: [P, F / 2].
    """
    P, X, (rows, E) = order.rows.shape[0], order.begins.shape[0] - 1, weight.shape
    if rows % X or weight.lie_in_fragments or not weight.spans:
        raise ValueError(
            f"weight has shape {weight.shape}; it must be [{X} F, E] in rows, in groups that a kernel takes"
        )
    F = rows // X
    check_tokens(x, order, F, E, bias, gather)
    if dispatch.form(x) != "triton" or (x.is_cuda and x.element_size() > 2):
        return reference(x, weight, order, bias, gather, act)
    inside, after = inside_and_after(P, X, act)
    out = torch.empty((P, F if inside is None else F // 2), dtype=x.dtype, device=x.device)
    if P:
        _launch(x if x.stride(1) == 1 else x.contiguous(), weight, order, bias, gather, inside, out)
    return out if after is None else activation.act_and_mul(out, after)


def reference(
    x: Tensor, weight: GroupedWeight, order: ExpertOrder, bias: Tensor | None, gather: bool, act: int | None = None
) -> Tensor:
    """Make numbers and multiply expert by expert in plain torch."""
    X = order.begins.shape[0] - 1
    numbers = weight.reference(x.dtype).chunk(X)
    return expert_by_expert(x, numbers.__getitem__, weight.shape[0] // X, order, bias, gather, act)


def _launch(
    x: Tensor, weight: GroupedWeight, order: ExpertOrder, bias: Tensor | None, gather: bool, act: int | None,
    out: Tensor, tile: PackedTile | None = None,
) -> None:  # fmt: skip
    P, X, E = out.shape[0], order.begins.shape[0] - 1, weight.shape[1]
    F = weight.shape[0] // X
    tile = tile or packed_tile(P, X, x)
    _grouped_expert_linear_kernel[(num_tiles(P, X, tile.tokens), cdiv(F, tile.outputs))](
        x, weight.words, weight.scales, weight.scales if weight.zeros is None else weight.zeros,
        x if bias is None else bias, order.rows, order.begins, out, X, F, E, x.stride(0), weight.scales.shape[0],
        weight.group * weight.spans // weight.block,
        **weight.form, SPANS=weight.spans, SHIFTED=weight.shifted, BLOCK=weight.block, GATHER=gather,
        BIAS=bias is not None, ACT=act, EXPERTS=next_power_of_2(X), WHOLE=E % weight.block == 0,
        TOKENS=tile.tokens, OUTPUTS=tile.outputs, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip


@jit_alike("X")
def _grouped_expert_linear_kernel(
    x_ptr, word_ptr, scale_ptr, zero_ptr, bias_ptr, rows_ptr, begins_ptr, out_ptr, X, F, E, x_stride, groups,
    spans_a_group,
    BITS: tl.constexpr, KIND: tl.constexpr, SCALE: tl.constexpr, MIDDLE: tl.constexpr, SPANS: tl.constexpr,
    SHIFTED: tl.constexpr, BLOCK: tl.constexpr, GATHER: tl.constexpr, BIAS: tl.constexpr, ACT: tl.constexpr,
    EXPERTS: tl.constexpr, WHOLE: tl.constexpr, TOKENS: tl.constexpr, OUTPUTS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """acc [OUTPUTS, TOKENS] = W x^T: the weights are the tall side, and go from words to tensor cores in registers."""
    expert, first, end = tile_of(tl.program_id(0), begins_ptr, X, EXPERTS, TOKENS)
    if expert < 0:
        return
    WIDTH: tl.constexpr = BLOCK * BITS // 32
    DEPTH: tl.constexpr = BLOCK // SPANS
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    place = first + tl.arange(0, TOKENS)
    live = place < end
    row = tl.load(rows_ptr + place, mask=live, other=0) if GATHER else tl.where(live, place, 0)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    real = output < F
    # Outputs behind the end repeat the last one and are not stored.
    there = expert.to(tl.int64) * F + weight_row(tl.minimum(output, F - 1), F, ACT)
    k = tl.arange(0, DEPTH)
    blocks = tl.cdiv(E, BLOCK)
    words = word_ptr + there[:, None] * (blocks * WIDTH) + tl.arange(0, WIDTH)[None, :]
    inputs = x_ptr + row.to(tl.int64)[None, :] * x_stride + k[:, None]
    acc = tl.zeros([OUTPUTS, TOKENS], tl.float32)
    for block in tl.range(0, blocks, num_stages=STAGES):
        codes = parts(tl.load(words + block * WIDTH), BITS, KIND, DTYPE)
        for span in tl.static_range(SPANS):
            group = (block * SPANS + span) // spans_a_group
            if not WHOLE:
                group = tl.minimum(group, groups - 1)
            held = group.to(tl.int64) * (X * F) + there
            scale, zero = scale_and_zero(scale_ptr, zero_ptr, held, SCALE, MIDDLE)
            at = block * BLOCK + span * DEPTH
            inside = live[None, :] if WHOLE else live[None, :] & (at + k < E)[:, None]
            x = tl.load(inputs + at, mask=inside, other=0.0)
            code = side_by_side(codes, span * (32 // BITS // SPANS), 32 // BITS // SPANS)
            if SHIFTED:
                code -= (zero + excess(BITS, KIND, DTYPE)).to(DTYPE)[:, None]
            acc += tl.dot(code, x, input_precision="ieee") * scale[:, None]
    if BIAS:
        offset = tl.load(bias_ptr + expert.to(tl.int64) * F + weight_row(output, F, ACT), mask=real, other=0.0)
        acc += offset.to(tl.float32)[:, None]
    store_tile(tl.trans(acc), out_ptr, place, live, F, OUTPUTS, ACT)
