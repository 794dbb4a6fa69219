"""A short causal convolution over each sequence's tokens, one filter a channel.

SiLU stands behind it (gated delta nets, Mamba 2), or it stands between two gates (LFM2): what goes in is multiplied
with the one, what comes out with the other.

What came before a step is kept per slot: the last W - 1 inputs of each channel. A sequence whose context begins with
the step has nothing behind it, whatever its slot holds from an earlier one.
"""

# mypy: disable-error-code="no-untyped-def"
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels import dispatch
from kernels.language import cdiv, jit, jit_alike, next_power_of_2, tl
from kernels.native import record
from kernels.step_layout import check_sequences

MAX_NATIVE = 8  # taps, MAX_TAPS in states.c


class Gates(NamedTuple):
    """What inputs and outputs of a convolution are multiplied with, [T, C] each, contiguous in the last dimension."""

    before: Tensor
    behind: Tensor


def causal_conv(
    x: Tensor,
    weight: Tensor,
    windows: Tensor,
    slots: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    max_query_len: int,
    bias: Tensor | None = None,
    gates: Gates | None = None,
) -> Tensor:
    """Return silu(convolution + bias) [T, C] of `x` [T, C] with `weight` [C, W], in x's dtype; float32 inside.

    With `gates` it is behind * (convolution of before * x, + bias), and windows hold before * x. `bias` is [C].
    `windows` float32 [slots + 1, W - 1, C] are read and brought up to date; its last row is nobody's. `slots`,
    `context_lens` int32 [S] and `query_start` int32 [S + 1] say whose tokens these are; a slot below 0 begins with
    nothing and keeps nothing. `max_query_len` bounds a sequence's tokens. Rows behind query_start[S] are not written.
    """
    _check(x, weight, windows, bias, gates)
    check_sequences(slots, query_start, context_lens)
    form = dispatch.form(x)
    if form == "triton":
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        _launch(x, weight, windows, slots, query_start, context_lens, max_query_len, bias, gates, out)
        return out
    floats = all(tensor.dtype == torch.float32 for tensor in (x, weight, bias, *(gates or ())) if tensor is not None)
    if form == "native" and floats and weight.shape[1] <= MAX_NATIVE:
        return _native(x, weight, windows, slots, query_start, context_lens, bias, gates)
    return reference(
        x, weight, windows, slots, query_start, context_lens, max_query_len=max_query_len, bias=bias, gates=gates
    )


def reference(
    x: Tensor,
    weight: Tensor,
    windows: Tensor,
    slots: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    max_query_len: int,
    bias: Tensor | None,
    gates: Gates | None,
) -> Tensor:
    """Convolve in plain torch. -1 is the last row, which nobody reads."""
    record.refuse("convolutions by torch make tensors that a tape would keep")
    rows, filters = slots.long(), weight.float()
    wide, offset = (
        x.float() if gates is None else x.float() * gates.before.float(),
        0.0 if bias is None else bias.float(),
    )
    lengths = query_start[1:] - query_start[:-1]
    begins = (context_lens > lengths) & (slots >= 0)
    before = torch.where(begins[:, None, None], windows[rows], 0.0)
    if max_query_len == 1 and len(slots) == len(x):
        taken = torch.cat((before, wide[:, None]), 1)
        windows[rows] = taken[:, 1:]
        return _behind((taken * filters.t()).sum(1) + offset, gates, slice(None)).to(x.dtype)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    bounds = query_start.tolist()
    for sequence, (begin, end) in enumerate(pairwise(bounds)):
        if begin < end:
            taken = torch.cat((before[sequence], wide[begin:end]))
            made = functional.conv1d(taken.t()[None], filters[:, None], groups=x.shape[1])[0].t()
            out[begin:end] = _behind(made + offset, gates, slice(begin, end)).to(x.dtype)
            windows[rows[sequence]] = taken[end - begin :]
    return out


def _behind(made: Tensor, gates: Gates | None, rows: slice) -> Tensor:
    return functional.silu(made) if gates is None else made * gates.behind[rows].float()


def _native(
    x: Tensor, weight: Tensor, windows: Tensor, slots: Tensor, query_start: Tensor, context_lens: Tensor,
    bias: Tensor | None, gates: Gates | None,
) -> Tensor:  # fmt: skip
    out = record.empty(tuple(x.shape))
    strides = (0, 0) if gates is None else (gates.before.stride(0), gates.behind.stride(0))
    numbers = (len(slots), *weight.shape, x.stride(0), windows.stride(0), windows.stride(1), len(windows) - 1, *strides)
    tensors = (x, weight, windows, slots, query_start, context_lens, out, bias, *(gates or ()))
    record.call([record.Record(record.CAUSAL_CONV, numbers, tuple(map(record.pointer, tensors)))], tensors)
    return out


def _check(x: Tensor, weight: Tensor, windows: Tensor, bias: Tensor | None, gates: Gates | None) -> None:
    if x.dim() != 2 or x.stride(1) != 1:
        raise ValueError(f"x has shape {tuple(x.shape)}; it must be [T, C], contiguous in its last dimension")
    C = x.shape[1]
    if weight.dim() != 2 or weight.shape[0] != C or weight.shape[1] < 2 or not weight.is_contiguous():
        raise ValueError(f"weight has shape {tuple(weight.shape)}; it must be contiguous [{C}, W] with W > 1")
    shape = (weight.shape[1] - 1, C)
    if windows.dim() != 3 or windows.shape[1:] != shape or windows.dtype != torch.float32 or windows.stride(2) != 1:
        raise ValueError(f"windows is {windows.dtype} {tuple(windows.shape)}; it must be float32 [slots + 1, {shape}]")
    if bias is not None and (bias.shape != (C,) or not bias.is_contiguous()):
        raise ValueError(f"bias has shape {tuple(bias.shape)}; it must be contiguous [{C}]")
    for name, gate in gates._asdict().items() if gates is not None else ():
        if gate.shape != x.shape or gate.stride(1) != 1:
            raise ValueError(f"the gate {name} has shape {tuple(gate.shape)}; it must be as x, {tuple(x.shape)}")


def _launch(
    x: Tensor,
    weight: Tensor,
    windows: Tensor,
    slots: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    max_query_len: int,
    bias: Tensor | None,
    gates: Gates | None,
    out: Tensor,
) -> None:
    (T, C), S, W = x.shape, len(slots), weight.shape[1]
    if T == 0 or S == 0:
        return
    block = min(256, next_power_of_2(C))  # channels of a program
    before, behind = (x, x) if gates is None else gates
    arguments = (
        x, before, behind, weight, weight if bias is None else bias, windows, slots, query_start, context_lens, out,
    )  # fmt: skip
    strides = (x.stride(0), before.stride(0), behind.stride(0), windows.stride(0), windows.stride(1))
    forms = {"W": W, "BIASED": bias is not None, "GATED": gates is not None, "BLOCK": block}
    if min(T, max_query_len) == 1:
        _causal_conv_kernel[(S, cdiv(C, block))](*arguments, C, *strides, **forms, num_warps=4)
        return
    # 16 tokens of 256 channels read 3 tokens more than they write, from L2. Eight warps take 76 registers, four 154; so
    # three programs' 8 KB each are on their way to a processor. How long sequences are only the device knows: there are
    # as many programs as they can fill together.
    tokens = max(16, next_power_of_2(W - 1))
    _prompt_conv_kernel[(cdiv(C, block), T // tokens + S)](
        *arguments, S, C, *strides, **forms, TAPS=next_power_of_2(W), TOKENS=tokens,
        SEQUENCES=max(64, next_power_of_2(S)), num_warps=8,
    )  # fmt: skip


@jit
def _whose(slots_ptr, query_start_ptr, context_ptr, sequence):
    """A sequence's slot, first row, number of tokens, and whether its slot holds what came before them."""
    slot = tl.load(slots_ptr + sequence).to(tl.int64)
    begin = tl.load(query_start_ptr + sequence)
    n = tl.load(query_start_ptr + sequence + 1) - begin
    return slot, begin, n, (slot >= 0) & (tl.load(context_ptr + sequence) > n)


@jit
def _now(x_ptr, before_ptr, at, column, live, stride_x, stride_b, GATED: tl.constexpr):
    """The step's inputs at places `at` [N, 1] of a sequence."""
    at = at.to(tl.int64)
    now = tl.load(x_ptr + at * stride_x + column, mask=live, other=0.0).to(tl.float32)
    if GATED:
        now *= tl.load(before_ptr + at * stride_b + column, mask=live, other=0.0).to(tl.float32)
    return now


@jit
def _inputs(
    x_ptr, before_ptr, windows_ptr, at, n, known, column, live, stride_x, stride_b, stride_w, W: tl.constexpr,
    GATED: tl.constexpr,
):  # fmt: skip
    """The inputs at places `at` [N, 1] of a sequence, those below 0 from its window."""
    kept = tl.load(windows_ptr + (at + (W - 1)) * stride_w + column, mask=live & (at < 0) & known, other=0.0)
    now = _now(x_ptr, before_ptr, at, column, live & (at >= 0) & (at < n), stride_x, stride_b, GATED)
    return tl.where(at < 0, kept, now)


@jit
def _offset(bias_ptr, column, C, BIASED: tl.constexpr):
    if BIASED:
        return tl.load(bias_ptr + column, mask=column < C, other=0.0).to(tl.float32)
    return tl.zeros(column.shape, dtype=tl.float32)


@jit
def _put(total, behind_ptr, out_ptr, row, column, live, C, stride_e, GATED: tl.constexpr):
    if GATED:
        made = total * tl.load(behind_ptr + row * stride_e + column, mask=live, other=0.0).to(tl.float32)
    else:
        made = total / (1 + tl.exp(-total))
    tl.store(out_ptr + row * C + column, made.to(out_ptr.dtype.element_ty), mask=live)


@jit_alike("slots_ptr")
def _causal_conv_kernel(
    x_ptr, before_ptr, behind_ptr, weight_ptr, bias_ptr, windows_ptr, slots_ptr, query_start_ptr, context_ptr, out_ptr,
    C, stride_x, stride_b, stride_e, stride_row, stride_w, W: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One token of a sequence, or none."""
    slot, begin, n, known = _whose(slots_ptr, query_start_ptr, context_ptr, tl.program_id(0))
    if n > 0:
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
        at = tl.zeros([1, 1], dtype=tl.int32)
        live = column < C
        row = begin.to(tl.int64)
        x_ptr += row * stride_x
        before_ptr += row * stride_b
        windows_ptr += slot * stride_row
        total = _offset(bias_ptr, column, C, BIASED)
        for tap in tl.static_range(W):
            values = _inputs(
                x_ptr, before_ptr, windows_ptr, at + (tap - (W - 1)), n, known, column, live, stride_x, stride_b,
                stride_w, W, GATED,
            )  # fmt: skip
            total += values * tl.load(weight_ptr + column * W + tap, mask=live, other=0.0).to(tl.float32)
            if tap > 0:  # no other program has a part in this window, and this line of it is read already
                tl.store(windows_ptr + (tap - 1) * stride_w + column, values, mask=live & (slot >= 0))
        _put(total, behind_ptr, out_ptr, row, column, live, C, stride_e, GATED)


@jit
def _tap(weight, taps, tap: tl.constexpr):
    return tl.sum(tl.where(taps[None, :] == tap, weight, 0.0), 1)[None, :]


@jit_alike("slots_ptr", "S")
def _prompt_conv_kernel(
    x_ptr, before_ptr, behind_ptr, weight_ptr, bias_ptr, windows_ptr, slots_ptr, query_start_ptr, context_ptr, out_ptr,
    S, C, stride_x, stride_b, stride_e, stride_row, stride_w, W: tl.constexpr, BIASED: tl.constexpr,
    GATED: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr, TOKENS: tl.constexpr, SEQUENCES: tl.constexpr,
):  # fmt: skip
    """Some tokens in a row of one sequence.

    The first ones alone know the window. They also write the new one: nobody else reads what they overwrite.
    """
    place, s = tl.program_id(1), tl.arange(0, SEQUENCES)
    begins = tl.load(query_start_ptr + s, mask=s < S, other=0) // TOKENS + s
    sequence = tl.sum(((begins <= place) & (s < S)).to(tl.int32), 0) - 1  # whose tiles begin at places of their own
    slot, begin, n, known = _whose(slots_ptr, query_start_ptr, context_ptr, sequence)
    first = (place - begin // TOKENS - sequence) * TOKENS
    if first < n:
        channel, taps = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, TAPS)
        # All taps of a channel at once: tap by tap a warp would touch sixteen lines of the cache for 64 bytes of them.
        inside = (channel < C)[:, None] & (taps < W)[None, :]
        weight = tl.load(weight_ptr + channel[:, None] * W + taps[None, :], mask=inside, other=0.0).to(tl.float32)
        column = channel[None, :]
        at = first + tl.arange(0, TOKENS)[:, None]
        live = (column < C) & (at < n)
        x_ptr += begin.to(tl.int64) * stride_x
        before_ptr += begin.to(tl.int64) * stride_b
        windows_ptr += slot * stride_row
        total = tl.zeros([TOKENS, BLOCK], dtype=tl.float32) + _offset(bias_ptr, column, C, BIASED)
        if first > 0:
            for tap in tl.static_range(W):
                shifted = at + (tap - (W - 1))
                values = _now(x_ptr, before_ptr, shifted, column, live, stride_x, stride_b, GATED)
                total += values * _tap(weight, taps, tap)
        else:
            for tap in tl.static_range(W):
                values = _inputs(
                    x_ptr, before_ptr, windows_ptr, at + (tap - (W - 1)), n, known, column, live, stride_x, stride_b,
                    stride_w, W, GATED,
                )  # fmt: skip
                total += values * _tap(weight, taps, tap)
            line = tl.arange(0, TAPS)[:, None]
            keep = (column < C) & (line < W - 1) & (slot >= 0)
            kept = _inputs(
                x_ptr, before_ptr, windows_ptr, n - (W - 1) + line, n, known, column, keep, stride_x, stride_b,
                stride_w, W, GATED,
            )  # fmt: skip
            tl.debug_barrier()  # lines move up: all are read before one is written
            tl.store(windows_ptr + line * stride_w + column, kept, mask=keep)
        row = (begin + at).to(tl.int64)
        _put(total, behind_ptr, out_ptr, row, column, live, C, stride_e, GATED)
