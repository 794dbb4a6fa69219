"""Linear layer on weights of 4 or 8 bits that stay so on the card; activations are not rounded.

With few rows memory decides, and a weight of 4 bits is a quarter of the bytes. Up to 64 rows, one too (256 of a weight
for `grouped_hopper`), take the tensor cores, on codes less their zeros, which 16 bits hold exactly, and scale each
group's sum: no weight is rounded. More rows than that are worth making the numbers once, in a buffer for one layer, and
torch's product.
"""

# mypy: disable-error-code="no-untyped-def"
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels import dependent, dispatch, fixed_linear
from kernels.dependent import follow
from kernels.grouped_weight import GroupedWeight, scale_and_zero
from kernels.grouped_words import excess, parts
from kernels.language import cdiv, jit, jit_alike, next_power_of_2, tl

_MAX_ROWS = 64
_MAX_HOPPER_ROWS = 256


def grouped_linear(x: Tensor, weight: GroupedWeight, bias: Tensor | None = None) -> Tensor:
    """Return `x` [T, E] times `weight` [F, E] transposed, plus `bias` [F]: [T, F] in x's dtype."""
    if x.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x has shape {tuple(x.shape)}; the weight {weight.shape} needs [T, {weight.shape[1]}]")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(bias.shape)}; it must be ({weight.shape[0]},)")
    if dispatch.form(x) != "triton":
        return reference(x, weight, bias)
    if dispatch.fixed():
        return fixed_linear.fixed_linear(x, weight.launch(x.dtype), bias)
    rows, half = x.shape[0], x.element_size() == 2
    if weight.lie_in_fragments:
        if half and 0 < rows <= _MAX_HOPPER_ROWS and x.is_cuda:
            from kernels import grouped_hopper  # Gluon, which neither the interpreter nor an older card needs to load

            return grouped_hopper.launch(x, weight, bias)
    elif half and 0 < rows <= _MAX_ROWS and weight.spans:
        return _launch(x, weight, bias)
    return functional.linear(x, weight.launch(x.dtype), bias)


def reference(x: Tensor, weight: GroupedWeight, bias: Tensor | None = None) -> Tensor:
    """Make the numbers and multiply with torch."""
    return functional.linear(x, weight.reference(x.dtype), bias)


class Tile(NamedTuple):
    """Outputs of a tile, warps, stages under way, parts of the sum, and whether zeros come off codes, not off sums."""

    outputs: int
    warps: int
    stages: int
    split: int
    subtract: bool


def _tile(T: int, weight: GroupedWeight, processors: int) -> Tile:
    """As an H200 wants it: more warps for more rows, and parts of the sum till all processors have work."""
    outputs, warps, programs = (64, 2, 2.5) if T <= 16 else (64, 4, 2.5) if T <= 32 else (128, 8, 0.7)
    tiles, blocks, split = cdiv(weight.shape[0], outputs), cdiv(weight.shape[1], weight.block), 1
    while split < 8 and tiles * split < programs * processors and blocks >= 4 * split:
        split *= 2
    return Tile(outputs, warps, 2 if 16 < T <= 32 and weight.shifted else 3, split, subtract=T > 16)


def _launch(x: Tensor, weight: GroupedWeight, bias: Tensor | None, tile: Tile | None = None) -> Tensor:
    (T, E), F = x.shape, weight.shape[0]
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty((T, F), dtype=x.dtype, device=x.device)
    outputs, warps, stages, split, subtract = tile or _tile(T, weight, dispatch.processors(x, elsewhere=1))
    tokens = max(8, next_power_of_2(T))
    tiles, spans_a_group = cdiv(F, outputs), weight.group * weight.spans // weight.block
    partial = x.new_empty((tiles, split, outputs, tokens), dtype=torch.float32) if split > 1 else x
    _grouped_linear_kernel[(tiles, split)](
        x, weight.words, weight.scales, weight.scales if weight.zeros is None else weight.zeros,
        out if bias is None else bias, out, partial, weight.arrived, T, F, E, x.stride(0),
        weight.scales.shape[0], spans_a_group, split,
        **weight.form, SPANS=weight.spans, SHIFTED=weight.shifted, BIAS=bias is not None,
        WHOLE=E % weight.block == 0, BLOCK=weight.block, TOKENS=tokens, OUTPUTS=outputs, STAGES=stages, SPLIT=split > 1,
        SUBTRACT=subtract and weight.shifted, num_warps=warps, **dependent.launch(x),
    )  # fmt: skip
    return out


@jit_alike("T")
def _grouped_linear_kernel(
    x_ptr, word_ptr, scale_ptr, zero_ptr, bias_ptr, out_ptr, partial_ptr, arrived_ptr, T, F, E, x_stride, groups,
    spans_a_group, split,
    BITS: tl.constexpr, KIND: tl.constexpr, SCALE: tl.constexpr, MIDDLE: tl.constexpr, SPANS: tl.constexpr,
    SHIFTED: tl.constexpr, BIAS: tl.constexpr,
    WHOLE: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr, OUTPUTS: tl.constexpr, STAGES: tl.constexpr,
    SPLIT: tl.constexpr, SUBTRACT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """acc [OUTPUTS, TOKENS] = W x^T: the weights are the tall side, and go from words to tensor cores in registers."""
    WIDTH: tl.constexpr = BLOCK * BITS // 32
    EACH: tl.constexpr = 32 // BITS // SPANS
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    row = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    there = tl.minimum(row, F - 1)  # outputs behind the end repeat the last one and are not stored
    token, word = tl.arange(0, TOKENS)[None, :], tl.arange(0, WIDTH)
    live = token < T
    blocks = tl.cdiv(E, BLOCK)
    words = word_ptr + there.to(tl.int64)[:, None] * (blocks * WIDTH) + word[None, :]
    inputs = x_ptr + token * x_stride + word[:, None]
    acc = tl.zeros([OUTPUTS, TOKENS], tl.float32)
    ones = tl.full([OUTPUTS, WIDTH], 1.0, DTYPE)
    first, end = blocks * tl.program_id(1) // split, blocks * (tl.program_id(1) + 1) // split
    follow(PDL)
    for block in tl.range(first, end, num_stages=STAGES):
        codes = parts(tl.load(words + block * WIDTH), BITS, KIND, DTYPE)
        at = block * BLOCK
        for span in tl.static_range(SPANS):
            group = (block * SPANS + span) // spans_a_group
            if not WHOLE:
                group = tl.minimum(group, groups - 1)
            scale, zero = scale_and_zero(scale_ptr, zero_ptr, group * F + there, SCALE, MIDDLE)
            if SUBTRACT:
                above = (zero + excess(BITS, KIND, DTYPE)).to(DTYPE)[:, None]
            sums = tl.zeros([OUTPUTS, TOKENS], tl.float32)
            inputs_sums = tl.zeros([OUTPUTS, TOKENS], tl.float32)
            for part in tl.static_range(span * EACH, span * EACH + EACH):
                inside = live if WHOLE else live & (at + part * WIDTH + word < E)[:, None]
                x = tl.load(inputs + at + part * WIDTH, mask=inside, other=0.0)
                code = codes[part]
                if SUBTRACT:
                    code -= above
                sums = tl.dot(code, x, sums)
                if SHIFTED and not SUBTRACT:
                    inputs_sums = tl.dot(ones, x, inputs_sums)
            if SHIFTED and not SUBTRACT:
                sums -= inputs_sums * (zero + excess(BITS, KIND, DTYPE))[:, None]
            acc += sums * scale[:, None]
    _store(acc, token, row, T, bias_ptr, out_ptr, partial_ptr, arrived_ptr, F, split, BIAS, SPLIT)


@jit
def _store(
    acc, token, row, T, bias_ptr, out_ptr, partial_ptr, arrived_ptr, F, split, BIAS: tl.constexpr, SPLIT: tl.constexpr
):
    """Store a tile; of parts of a sum the last program to arrive does, and adds all of them in their order."""
    OUTPUTS: tl.constexpr = acc.shape[0]
    TOKENS: tl.constexpr = acc.shape[1]
    real = row < F
    last = True
    if SPLIT:
        to = (
            partial_ptr
            + tl.program_id(0) * (split * OUTPUTS * TOKENS)
            + tl.arange(0, OUTPUTS)[:, None] * TOKENS
            + token
        )
        tl.store(to + tl.program_id(1) * (OUTPUTS * TOKENS), acc)
        tl.debug_barrier()
        last = tl.atomic_add(arrived_ptr + tl.program_id(0), 1, sem="acq_rel") == split - 1
    if last:
        if SPLIT:
            tl.store(arrived_ptr + tl.program_id(0), 0)
            acc = _sum(to, OUTPUTS * TOKENS, split)
        if BIAS:
            acc += tl.load(bias_ptr + row, mask=real, other=0.0).to(tl.float32)[:, None]
        tl.store(out_ptr + token * F + row[:, None], acc.to(out_ptr.dtype.element_ty), mask=(token < T) & real[:, None])


@jit
def _sum(pointer, stride: tl.constexpr, split):
    """Add what `split` programs wrote, in their order; it is read past the L1 cache."""
    total = tl.load(pointer, cache_modifier=".cg")
    for part in range(1, split):
        total += tl.load(pointer + part * stride, cache_modifier=".cg")
    return total
