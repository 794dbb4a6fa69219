"""`expert_linear` on weights that stay 4 bit floats: numbers are made of them in registers, just before they multiply.

With few tokens an expert the bytes of the weights decide, and a fourth of them is read; with many, what making numbers
costs is shared by a tile's tokens. Nothing is rounded that the same weights in bfloat16 would not round.
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
from kernels.float4_experts import BLOCK, WIDTH, Float4Experts, numbers
from kernels.language import cdiv, jit_alike, next_power_of_2, tl


def float4_expert_linear(
    x: Tensor, weight: Float4Experts, order: ExpertOrder, bias: Tensor | None = None, *, gather: bool,
    act: int | None = None,
) -> Tensor:  # fmt: skip
    """Return [P, F]: at each place of `order` its token times the transposed `weight` [X, F, E] of its expert.

    `bias` [X, F] is added, each expert's to its tokens. `x` is [P, E], in that order; with `gather` [T, E], from which
    the tokens are taken. With `act`, one of `activation`'s, the first half of the outputs are gates of the second:
    [P, F / 2].
    """
    P, (X, F, E) = order.rows.shape[0], weight.shape
    if order.begins.shape[0] != X + 1:
        raise ValueError(f"weight has shape {weight.shape}; the order has {order.begins.shape[0] - 1} experts")
    check_tokens(x, order, F, E, bias, gather)
    if dispatch.form(x) != "triton":
        return reference(x, weight, order, bias, gather, act)
    inside, after = inside_and_after(P, X, act)
    out = torch.empty((P, F if inside is None else F // 2), dtype=x.dtype, device=x.device)
    if P:
        _launch(x if x.stride(1) == 1 else x.contiguous(), weight, order, bias, gather, inside, out)
    return out if after is None else activation.act_and_mul(out, after)


def reference(
    x: Tensor, weight: Float4Experts, order: ExpertOrder, bias: Tensor | None, gather: bool, act: int | None = None
) -> Tensor:
    """Make numbers and multiply expert by expert in plain torch."""
    F = weight.shape[1]
    return expert_by_expert(x, lambda expert: weight.reference(expert, x.dtype), F, order, bias, gather, act)


_LONG = PackedTile(128, 256, 8, 3)


def _launch(
    x: Tensor, weight: Float4Experts, order: ExpertOrder, bias: Tensor | None, gather: bool, act: int | None,
    out: Tensor, tile: PackedTile | None = None,
) -> None:  # fmt: skip
    P, (X, F, E) = out.shape[0], weight.shape
    tile = tile or packed_tile(P, X, x, _LONG)
    _float4_expert_linear_kernel[(num_tiles(P, X, tile.tokens), cdiv(F, tile.outputs))](
        x, weight.words, weight.exponents, x if bias is None else bias, order.rows, order.begins, out, X, F, E,
        x.stride(0),
        GATHER=gather, BIAS=bias is not None, ACT=act, EXPERTS=next_power_of_2(X), WHOLE=E % BLOCK.value == 0,
        TOKENS=tile.tokens, OUTPUTS=tile.outputs, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip


@jit_alike("X")
def _float4_expert_linear_kernel(
    x_ptr, word_ptr, exponent_ptr, bias_ptr, rows_ptr, begins_ptr, out_ptr, X, F, E, x_stride,
    GATHER: tl.constexpr, BIAS: tl.constexpr, ACT: tl.constexpr, EXPERTS: tl.constexpr, WHOLE: tl.constexpr,
    TOKENS: tl.constexpr, OUTPUTS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """acc [OUTPUTS, TOKENS] = W x^T: the weights are the tall side, and go from words to tensor cores in registers."""
    expert, first, end = tile_of(tl.program_id(0), begins_ptr, X, EXPERTS, TOKENS)
    if expert < 0:
        return
    expert = expert.to(tl.int64)
    place = first + tl.arange(0, TOKENS)
    live = place < end
    row = tl.load(rows_ptr + place, mask=live, other=0) if GATHER else tl.where(live, place, 0)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    # Outputs behind the end repeat the last one and are not stored.
    there = weight_row(tl.minimum(output, F - 1), F, ACT)
    word = tl.arange(0, WIDTH)
    blocks = tl.cdiv(E, BLOCK)
    words = word_ptr + (expert * F + there)[:, None] * (blocks * WIDTH) + word[None, :]
    exponents = exponent_ptr + expert * blocks * F + there[:, None]
    k = tl.arange(0, BLOCK)
    inputs = x_ptr + row.to(tl.int64)[None, :] * x_stride + k[:, None]
    acc = tl.zeros([OUTPUTS, TOKENS], tl.float32)
    for block in tl.range(0, blocks, num_stages=STAGES):
        scales = tl.broadcast_to(tl.load(exponents + block * F), [OUTPUTS, WIDTH])
        w = numbers(tl.load(words + block * WIDTH), scales, x_ptr.dtype.element_ty)
        at = block * BLOCK
        inside = live[None, :] if WHOLE else live[None, :] & (at + k < E)[:, None]
        x = tl.load(inputs + at, mask=inside, other=0.0)
        acc = tl.dot(w, x, acc, input_precision="ieee")
    real = output < F
    if BIAS:
        acc += tl.load(bias_ptr + expert * F + weight_row(output, F, ACT), mask=real, other=0.0).to(tl.float32)[:, None]
    store_tile(tl.trans(acc), out_ptr, place, live, F, OUTPUTS, ACT)
