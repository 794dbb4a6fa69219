"""The selective state space of Mamba 2: a state of fixed size that fades and takes in (SSD; arXiv 2405.21060).

Each head keeps a matrix S [N, P]. A token lets it fade by the length of its step, adds what it says of its input, and
reads it:

    S <- S exp(-rate dt) + dt b x;  out = c S + skip x,   dt = softplus(its own + bias)

A state is read from and left in its sequence's slot; a sequence whose context begins with the step begins with zeros.
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from kernels import dispatch
from kernels.fading import softplus
from kernels.language import cdiv, jit_alike, next_power_of_2, tl
from kernels.native import record
from kernels.step_layout import check_sequences

_CHUNK = 64  # tokens that the reference takes at once


@dataclass(frozen=True)
class Steps:
    """How long a token's step is for each head, and what the head does with it, all for float32 inside.

    `dt` [T, H] comes of the token; `rate`, `bias` and `skip` float32 [H] are the model's (exp of A_log, dt_bias, D).
    """

    dt: Tensor
    rate: Tensor
    bias: Tensor
    skip: Tensor


def selective_scan(
    x: Tensor,
    b: Tensor,
    c: Tensor,
    steps: Steps,
    states: Tensor,
    slots: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    max_query_len: int,
) -> Tensor:
    """Return what each head reads, [T, H, P] in x's dtype, for `x` [T, H, P] and `b`, `c` [T, G, N].

    Group g serves H / G heads in a row. `states` float32 [slots + 1, H, N, P] are read and brought up to date; its last
    row is nobody's. `slots`, `query_start`, `context_lens`, `max_query_len` and rows behind the last sequence are as in
    `causal_conv`.
    """
    _check(x, b, c, steps, states)
    check_sequences(slots, query_start, context_lens)
    form = dispatch.form(x)
    if form == "triton":
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        _launch(x, b, c, steps, states, slots, query_start, context_lens, out)
        return out
    if form == "native" and all(tensor.dtype == torch.float32 for tensor in (x, b, c, steps.dt)):
        return _native(x, b, c, steps, states, slots, query_start, context_lens)
    return reference(x, b, c, steps, states, slots, query_start, context_lens, max_query_len=max_query_len)


def reference(
    x: Tensor,
    b: Tensor,
    c: Tensor,
    steps: Steps,
    states: Tensor,
    slots: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    max_query_len: int,
) -> Tensor:
    """Compute in plain torch: steps of one token each all at once, others sequence by sequence in chunks of tokens."""
    record.refuse("scans by torch make copies of states that a tape would keep")
    rows, groups = slots.long(), x.shape[1] // b.shape[1]
    lengths = query_start[1:] - query_start[:-1]
    begins = (context_lens > lengths) & (slots >= 0)
    dt, wide = functional.softplus(steps.dt.float() + steps.bias), x.float()
    g, taken, skipped = -steps.rate * dt, dt[..., None] * wide, steps.skip[:, None] * wide
    b, c = (each.float().repeat_interleave(groups, 1) for each in (b, c))
    if max_query_len == 1 and len(slots) == len(x):
        state = torch.where(begins[:, None, None, None], states[rows], 0.0) * g.exp()[..., None, None]
        state = state + b[..., :, None] * taken[..., None, :]
        states[rows] = state
        return ((c[..., None, :] @ state)[..., 0, :] + skipped).to(x.dtype)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for sequence, (begin, end) in enumerate(pairwise(query_start.tolist())):
        state = torch.where(begins[sequence], states[rows[sequence]], 0.0)
        for at in range(begin, end, _CHUNK):
            part = slice(at, min(at + _CHUNK, end))
            read, state = _through_chunk(b[part], c[part], taken[part], g[part], state)
            out[part] = (read + skipped[part]).to(x.dtype)
        if begin < end:
            states[rows[sequence]] = state
    return out


def _through_chunk(b: Tensor, c: Tensor, taken: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return what n tokens read [n, H, P] and the state behind them, by what is left of each input at each token."""
    b, c, taken, g = (each.transpose(0, 1) for each in (b, c, taken, g))
    faded = g.cumsum(1)  # the logarithm of what is left of `state` behind each token
    left = faded.exp()[..., None]
    between = (faded[..., :, None] - faded[..., None, :]).tril().exp().tril()
    read = (c @ state) * left + ((c @ b.transpose(1, 2)) * between) @ taken
    last = (faded[:, -1:] - faded).exp()[..., None]
    return read.transpose(0, 1), state * left[:, -1:] + (b * last).transpose(1, 2) @ taken


def _native(
    x: Tensor, b: Tensor, c: Tensor, steps: Steps, states: Tensor, slots: Tensor, query_start: Tensor,
    context_lens: Tensor,
) -> Tensor:  # fmt: skip
    out = record.empty(tuple(x.shape))
    strides = (tensor.stride(0) for tensor in (x, b, c, steps.dt, states))
    numbers = (len(slots), x.shape[1], *b.shape[1:], x.shape[2], *strides, len(states) - 1)
    tensors = (
        x, b, c, steps.dt, steps.rate, steps.bias, steps.skip, states, slots, query_start, context_lens, out,
    )  # fmt: skip
    record.call([record.Record(record.SELECTIVE_SCAN, numbers, tuple(map(record.pointer, tensors)))], tensors)
    return out


def _check(x: Tensor, b: Tensor, c: Tensor, steps: Steps, states: Tensor) -> None:
    if x.dim() != 3 or b.dim() != 3 or c.shape != b.shape or b.shape[0] != x.shape[0]:
        shapes = f"x {tuple(x.shape)}, b {tuple(b.shape)} and c {tuple(c.shape)}"
        raise ValueError(f"{shapes} must be [T, H, P] and [T, G, N] twice")
    if x.shape[1] % b.shape[1]:
        raise ValueError(f"x has {x.shape[1]} heads, not a multiple of b's {b.shape[1]} groups")
    for name, tensor in (("x", x), ("b", b), ("c", c)):
        if tensor.stride(2) != 1 or tensor.stride(1) != tensor.shape[2]:
            raise ValueError(f"{name} must be contiguous in its last two dimensions")
    T, H = x.shape[:2]
    for name in ("dt", "rate", "bias", "skip"):
        tensor, wanted = getattr(steps, name), (T, H) if name == "dt" else (H,)
        if tensor.shape != wanted or tensor.stride(-1) != 1:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {wanted}, contiguous in the last")
    shape = (H, b.shape[2], x.shape[2])
    dense = states.dim() == 4 and states[0].is_contiguous()
    if not dense or states.shape[1:] != shape or states.dtype != torch.float32:
        raise ValueError(f"states is {states.dtype} {tuple(states.shape)}; it must be float32 [slots + 1, {shape}]")


def _launch(
    x: Tensor, b: Tensor, c: Tensor, steps: Steps, states: Tensor, slots: Tensor, query_start: Tensor,
    context_lens: Tensor, out: Tensor,
) -> None:  # fmt: skip
    (T, H, P), S, (G, N) = x.shape, len(slots), b.shape[1:]
    if T == 0 or S == 0:
        return
    block = min(32, next_power_of_2(P))  # of columns, as in the gated delta rule: they do not meet
    _selective_scan_kernel[(S, H, cdiv(P, block))](
        x, b, c, steps.dt, steps.rate, steps.bias, steps.skip, states, slots, query_start, context_lens, out,
        x.stride(0), b.stride(0), c.stride(0), steps.dt.stride(0), states.stride(0),
        H=H, GROUPS=H // G, N=N, P=P, BLOCK_N=next_power_of_2(N), BLOCK_P=block, num_warps=4,
    )  # fmt: skip


@jit_alike("slots_ptr")
def _selective_scan_kernel(
    x_ptr, b_ptr, c_ptr, dt_ptr, rate_ptr, bias_ptr, skip_ptr, states_ptr, slots_ptr, query_start_ptr, context_ptr,
    out_ptr, stride_x, stride_b, stride_c, stride_dt, stride_row,
    H: tl.constexpr, GROUPS: tl.constexpr, N: tl.constexpr, P: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Some columns of one head's state, token by token: it stays in registers from the first to the last."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    begin = tl.load(query_start_ptr + sequence).to(tl.int64)
    end = tl.load(query_start_ptr + sequence + 1).to(tl.int64)
    if begin < end:
        slot = tl.load(slots_ptr + sequence).to(tl.int64)
        known = (slot >= 0) & (tl.load(context_ptr + sequence) > end - begin)
        n = tl.arange(0, BLOCK_N)
        column = tl.program_id(2) * BLOCK_P + tl.arange(0, BLOCK_P)
        rows, columns = n < N, column < P
        live = rows[:, None] & columns[None, :]
        place = states_ptr + slot * stride_row + head * (N * P) + n[:, None] * P + column[None, :]
        state = tl.load(place, mask=live & known, other=0.0)
        rate, bias, skip = tl.load(rate_ptr + head), tl.load(bias_ptr + head), tl.load(skip_ptr + head)
        group = (head // GROUPS) * N + n
        value = head * P + column
        for token in range(begin, end):
            b = tl.load(b_ptr + token * stride_b + group, mask=rows, other=0.0).to(tl.float32)
            c = tl.load(c_ptr + token * stride_c + group, mask=rows, other=0.0).to(tl.float32)
            x = tl.load(x_ptr + token * stride_x + value, mask=columns, other=0.0).to(tl.float32)
            dt = softplus(tl.load(dt_ptr + token * stride_dt + head).to(tl.float32) + bias)
            state = state * tl.exp(-rate * dt) + b[:, None] * (dt * x)[None, :]
            read = tl.sum(state * c[:, None], 0) + skip * x
            tl.store(out_ptr + token * (H * P) + value, read.to(out_ptr.dtype.element_ty), mask=columns)
        tl.store(place, state, mask=live & (slot >= 0))
