"""The gated delta rule: attention with a state of fixed size instead of keys and values (arXiv 2412.06464).

Each value head keeps a matrix S [Dk, Dv]. A token lets it fade by a factor, corrects what it says of the token's key
towards the token's value, and reads it with the query:

    S <- S exp(g);  S <- S + beta k (v - k S);  out = q S,   g = -rate softplus(a + bias), beta = sigmoid(b)

Queries and keys have unit length. A state is read from and left in its sequence's slot; a sequence whose context begins
with the step begins with zeros.
"""

# mypy: disable-error-code="no-untyped-def"
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from kernels import dispatch
from kernels.fading import Fading, log_left
from kernels.gated_delta_chunks import through_chunks
from kernels.gated_delta_prompts import tiles_of, walk
from kernels.language import cdiv, jit_alike, next_power_of_2, tl
from kernels.native import record
from kernels.step_layout import check_sequences

EPS = 1e-6  # of the length of queries and keys
MAX_NATIVE = 512  # numbers of a key, MAX_KEYS in states.c
_IN_CHUNKS = 9  # tokens of a sequence: from so many on, chunks are sooner done, at 1.6 us a token (H200) one by one
_CHUNK_KEYS = 128  # numbers of a key that a chunk has registers for


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    fading: Fading,
    states: Tensor,
    slots: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    max_query_len: int,
    in_turns: bool = False,
) -> Tensor:
    """Return what each value head reads, [T, V, Dv] in v's dtype, for `q`, `k` [T, K, Dk] and `v` [T, V, Dv].

    Key head h serves V / K value heads in a row, or with `in_turns` each K-th one from h on. `states` float32
    [slots + 1, V, Dk, Dv] are read and brought up to date; its last row is nobody's. `slots`, `query_start`,
    `context_lens`, `max_query_len` and rows behind the last sequence are as in `causal_conv`.
    """
    _check(q, k, v, fading, states)
    check_sequences(slots, query_start, context_lens)
    form = dispatch.form(q)
    if form == "triton":
        out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        _launch(q, k, v, fading, states, slots, query_start, context_lens, max_query_len, in_turns, out)
        return out
    floats = all(tensor.dtype == torch.float32 for tensor in (q, k, v, fading.a, fading.b))
    if form == "native" and floats and q.shape[2] <= MAX_NATIVE:
        return _native(q, k, v, fading, states, slots, query_start, context_lens, in_turns)
    return reference(
        q, k, v, fading, states, slots, query_start, context_lens, max_query_len=max_query_len, in_turns=in_turns
    )


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    fading: Fading,
    states: Tensor,
    slots: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    max_query_len: int,
    in_turns: bool = False,
) -> Tensor:
    """Compute in plain torch: sequences of one token all at once, others one by one in chunks of tokens."""
    record.refuse("delta rules by torch make copies of states that a tape would keep")
    rows, groups = slots.long(), v.shape[1] // k.shape[1]
    lengths = query_start[1:] - query_start[:-1]
    begins = (context_lens > lengths) & (slots >= 0)
    g = -fading.rate * functional.softplus(fading.a.float() + fading.bias)
    beta = torch.sigmoid(fading.b.float())
    wide_q, wide_k = (
        _unit(x).repeat(1, groups, 1) if in_turns else _unit(x).repeat_interleave(groups, 1) for x in (q, k)
    )
    wide_q, wide_v = wide_q * q.shape[2] ** -0.5, v.float()
    if max_query_len == 1 and len(slots) == len(v):
        before = torch.where(begins[:, None, None, None], states[rows], 0.0)
        made, after = _one_token(wide_q, wide_k, wide_v, g, beta, before)
        states[rows] = after
        return made.to(v.dtype)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    ones = torch.nonzero(lengths == 1)[:, 0]
    at = query_start[ones].long()
    before = torch.where(begins[ones, None, None, None], states[rows[ones]], 0.0)
    made, after = _one_token(wide_q[at], wide_k[at], wide_v[at], g[at], beta[at], before)
    out[at], states[rows[ones]] = made.to(v.dtype), after
    bounds = query_start.tolist()
    for sequence, (begin, end) in enumerate(pairwise(bounds)):
        if end - begin > 1:
            part = slice(begin, end)
            state = torch.where(begins[sequence], states[rows[sequence]], 0.0)
            made, after = through_chunks(wide_q[part], wide_k[part], wide_v[part], g[part], beta[part], state)
            out[part], states[rows[sequence]] = made.to(v.dtype), after
    return out


def _unit(x: Tensor) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + EPS)


def _one_token(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Take one token of each of S sequences; returns what is read [S, V, Dv] and the states behind it."""
    state = state * g.exp()[..., None, None]
    change = (v - (k[..., None, :] @ state)[..., 0, :]) * beta[..., None]
    state = state + k[..., :, None] * change[..., None, :]
    return (q[..., None, :] @ state)[..., 0, :], state


def _native(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    fading: Fading,
    states: Tensor,
    slots: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    in_turns: bool,
) -> Tensor:
    out = record.empty(tuple(v.shape))
    K, Dk = q.shape[1:]
    strides = (tensor.stride(0) for tensor in (q, k, v, fading.a, fading.b, states))
    numbers = (len(slots), v.shape[1], K, Dk, v.shape[2], *strides, len(states) - 1, int(in_turns))
    tensors = (
        q, k, v, fading.a, fading.b, fading.rate, fading.bias, states, slots, query_start, context_lens, out,
    )  # fmt: skip
    pointers = tuple(map(record.pointer, tensors))
    record.call([record.Record(record.GATED_DELTA, numbers, pointers, (Dk**-0.5, EPS))], tensors)
    return out


def _check(q: Tensor, k: Tensor, v: Tensor, fading: Fading, states: Tensor) -> None:
    if q.dim() != 3 or k.shape != q.shape or v.dim() != 3 or v.shape[0] != q.shape[0]:
        shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}"
        raise ValueError(f"{shapes} must be [T, K, Dk] twice and [T, V, Dv]")
    if v.shape[1] % k.shape[1]:
        raise ValueError(f"v has {v.shape[1]} heads, not a multiple of k's {k.shape[1]}")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.stride(2) != 1 or tensor.stride(1) != tensor.shape[2]:
            raise ValueError(f"{name} must be contiguous in its last two dimensions")
    T, V = v.shape[:2]
    for name in ("a", "b", "rate", "bias"):
        tensor, wanted = getattr(fading, name), (T, V) if name in "ab" else (V,)
        if tensor.shape != wanted or tensor.stride(-1) != 1:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {wanted}, contiguous in the last")
    shape = (V, q.shape[2], v.shape[2])
    dense = states.dim() == 4 and states[0].is_contiguous()
    if not dense or states.shape[1:] != shape or states.dtype != torch.float32:
        raise ValueError(f"states is {states.dtype} {tuple(states.shape)}; it must be float32 [slots + 1, {shape}]")


def _launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    fading: Fading,
    states: Tensor,
    slots: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    max_query_len: int,
    in_turns: bool,
    out: Tensor,
) -> None:
    (T, V, Dv), S, (K, Dk) = v.shape, len(slots), q.shape[1:]
    if T == 0 or S == 0:
        return
    # Heads in turns are those of GGUF files, which are rare on cards: they have no kernel for chunks.
    chunks = max_query_len >= _IN_CHUNKS and not in_turns and _may_be_cut(q, k, v)
    if chunks:
        tiles = tiles_of(q, k, fading, query_start, num_value_heads=V, shortest=_IN_CHUNKS, eps=EPS)
        walk(q, k, v, tiles, states, slots, query_start, context_lens, out)
    # Columns of a state do not meet, so programs share a head: 32 columns of 128 rows are 32 numbers a thread at 4
    # warps, and one sequence of 32 heads fills 128 processors.
    block_v = min(32, next_power_of_2(Dv))
    _gated_delta_kernel[(S, V, cdiv(Dv, block_v))](
        q, k, v, fading.a, fading.b, fading.rate, fading.bias, states, slots, query_start, context_lens, out,
        _IN_CHUNKS if chunks else T + 1,
        q.stride(0), k.stride(0), v.stride(0), fading.a.stride(0), fading.b.stride(0), states.stride(0), Dk**-0.5,
        V=V, KEYS=K, IN_TURNS=in_turns, DK=Dk, DV=Dv, BLOCK_K=next_power_of_2(Dk), BLOCK_V=block_v, EPS=EPS,
        num_warps=4,
    )  # fmt: skip


def _may_be_cut(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether long sequences may go through chunks, which round to 16 bits and add by where a chunk begins."""
    narrow = q.dtype == k.dtype == v.dtype and q.element_size() == 2
    return narrow and q.shape[2] <= _CHUNK_KEYS and not dispatch.fixed()


@jit_alike("slots_ptr", "long")
def _gated_delta_kernel(
    q_ptr, k_ptr, v_ptr, a_ptr, b_ptr, rate_ptr, bias_ptr, states_ptr, slots_ptr, query_start_ptr, context_ptr,
    out_ptr, long, stride_q, stride_k, stride_v, stride_a, stride_b, stride_row, scale,
    V: tl.constexpr, KEYS: tl.constexpr, IN_TURNS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Some columns of one head's state, token by token: it stays in registers from the first to the last.

    Sequences of `long` tokens and more are left to others.
    """
    sequence, head = tl.program_id(0), tl.program_id(1)
    begin = tl.load(query_start_ptr + sequence).to(tl.int64)
    end = tl.load(query_start_ptr + sequence + 1).to(tl.int64)
    if (begin < end) & (end - begin < long):
        slot = tl.load(slots_ptr + sequence).to(tl.int64)
        known = (slot >= 0) & (tl.load(context_ptr + sequence) > end - begin)
        d = tl.arange(0, BLOCK_K)
        column = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
        rows, columns = d < DK, column < DV
        live = rows[:, None] & columns[None, :]
        place = states_ptr + slot * stride_row + head * (DK * DV) + d[:, None] * DV + column[None, :]
        state = tl.load(place, mask=live & known, other=0.0)
        rate, bias = tl.load(rate_ptr + head), tl.load(bias_ptr + head)
        key = (head % KEYS if IN_TURNS else head // (V // KEYS)) * DK + d
        value = head * DV + column
        for token in range(begin, end):
            q = tl.load(q_ptr + token * stride_q + key, mask=rows, other=0.0).to(tl.float32)
            k = tl.load(k_ptr + token * stride_k + key, mask=rows, other=0.0).to(tl.float32)
            v = tl.load(v_ptr + token * stride_v + value, mask=columns, other=0.0).to(tl.float32)
            a = tl.load(a_ptr + token * stride_a + head).to(tl.float32)
            b = tl.load(b_ptr + token * stride_b + head).to(tl.float32)
            q *= tl.rsqrt(tl.sum(q * q, 0) + EPS) * scale
            k *= tl.rsqrt(tl.sum(k * k, 0) + EPS)
            state *= tl.exp(log_left(a, rate, bias))
            change = (v - tl.sum(state * k[:, None], 0)) / (1 + tl.exp(-b))
            state += k[:, None] * change[None, :]
            read = tl.sum(state * q[:, None], 0)
            tl.store(out_ptr + token * (V * DV) + value, read.to(out_ptr.dtype.element_ty), mask=columns)
        tl.store(place, state, mask=live & (slot >= 0))
