"""The gated delta rule over many tokens on a GPU: chunks of 64 tokens, by products of matrices.

The changes D that a chunk's tokens make to the state S before it are one triangular system (the WY form; arXiv
2412.06464, section 3.3). With k of unit length, q scaled, and c_i the sum of the logarithms g up to token i:

    D = T (V - diag(e^c_i) K S),  T = (1 + strictly lower (beta_i e^(c_i - c_j) k_i k_j))^-1 diag(beta)
    out = diag(e^c_i) Q S + A D,  A = lower (e^(c_i - c_j) q_i k_j)
    S <- e^c_last S + K^T diag(e^(c_last - c_j)) D

T and A do not know S, so a first launch makes them of all chunks and heads at once. A second one walks through the
chunks of each sequence and head with some columns of S in registers, which do not meet one another. Residuals are taken
before T is multiplied with them: T K and T V, made ahead, would save a product and cost twice the bytes and a third
more error, for they nearly cancel where a state knows its tokens.

Floor of 2,048 tokens with 32 value heads of 128 on an H200: 54 MB of inputs, outputs and states are 13 us, 10.8 GFLOP
15 us; with T and A, and with what programs of 32 columns read again, 230 MB come from L2, which is some 42 us.

Products take numbers as they come, keys and queries before they get unit length: that scales the float32 results. What
is rounded to 16 bits is S (a copy of it; it is kept in float32), the residuals, T, A and D. T is solved in float32.
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.fading import Fading, at_least, log_left
from kernels.language import cdiv, jit, jit_alike, next_power_of_2, tl
from kernels.unit_lower import unit_lower_inverse

CHUNK = 64  # tokens
_CHUNK = tl.constexpr(CHUNK)
_SCALES = tl.constexpr(4)
COLUMNS = 32  # of a state, of a program: one sequence of 32 heads fills 128 processors
_STAGES = 2  # one chunk on its way while one is computed; 104 KB of shared memory, so that two programs fit


@dataclass(frozen=True)
class Tiles:
    """What of chunks does not hang on states: T and A [chunks, V, 2, 64, 64], and `scales` float32 [chunks, V, 4, 64].

    Chunks of one sequence follow one another; sequences that have any have `shortest` tokens and more, and are `longs`
    at most.
    """

    tiles: Tensor
    scales: Tensor
    shortest: int
    longs: int


def tiles_of(
    q: Tensor, k: Tensor, fading: Fading, query_start: Tensor, *, num_value_heads: int, shortest: int, eps: float
) -> Tiles:
    """Queue what comes before any state, for sequences of `shortest` tokens and more.

    How many these are only the device knows; programs beyond them end at once.
    """
    (T, K, Dk), S, V = q.shape, len(query_start) - 1, num_value_heads
    longs = min(S, T // shortest)
    places = (T + (CHUNK - 1) * longs) // CHUNK  # each sequence's last chunk may be short
    tiles = torch.empty((places, V, 2, CHUNK, CHUNK), dtype=q.dtype, device=q.device)
    scales = torch.empty((places, V, 4, CHUNK), dtype=torch.float32, device=q.device)
    if longs:
        _delta_chunks_kernel[(V, places)](
            q, k, fading.a, fading.b, fading.rate, fading.bias, query_start, tiles, scales, S,
            q.stride(0), k.stride(0), fading.a.stride(0), fading.b.stride(0), Dk**-0.5,
            V=V, GROUPS=V // K, DK=Dk, BLOCK_K=max(16, next_power_of_2(Dk)), SEQUENCES=max(64, next_power_of_2(S)),
            SHORTEST=shortest, EPS=eps, num_warps=4,
        )  # fmt: skip
    return Tiles(tiles, scales, shortest, longs)


def walk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: Tiles,
    states: Tensor,
    slots: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    out: Tensor,
    *,
    columns: int = COLUMNS,
) -> None:
    """Queue the way through the chunks of each sequence that has any; `out` of others is left alone.

    `q`, `k` and `v` have one dtype.
    """
    (V, Dv), S, (K, Dk) = v.shape[1:], len(slots), q.shape[1:]
    block_v = max(16, min(columns, next_power_of_2(Dv)))
    if tiles.longs:
        _delta_walk_kernel[(cdiv(Dv, block_v), V, tiles.longs)](
            q, k, v, states, slots, query_start, context_lens, tiles.tiles, tiles.scales, out, S,
            q.stride(0), k.stride(0), v.stride(0), states.stride(0),
            V=V, GROUPS=V // K, DK=Dk, DV=Dv, BLOCK_K=max(16, next_power_of_2(Dk)), BLOCK_V=block_v,
            SEQUENCES=max(64, next_power_of_2(S)), SHORTEST=tiles.shortest, STAGES=_STAGES, num_warps=4,
        )  # fmt: skip


@jit
def _chunks(query_start_ptr, S, SEQUENCES: tl.constexpr, SHORTEST: tl.constexpr):
    """How many chunks each sequence is cut into, 0 for those that are too short."""
    s = tl.arange(0, SEQUENCES)
    begin = tl.load(query_start_ptr + s, mask=s < S, other=0)
    n = tl.load(query_start_ptr + s + 1, mask=s < S, other=0) - begin
    return s, tl.where(n >= SHORTEST, (n + _CHUNK - 1) // _CHUNK, 0)


@jit
def _narrow(x, like: tl.constexpr):
    """Round to the dtype of a product's other side, whose range may be small: infinity times 0 is no number."""
    if like == tl.float16:
        x = tl.clamp(x, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    return x.to(like)


@jit
def _scales(at, there):
    """What a chunk's rows of K S, of Q S and of changes are scaled by, and how much of the state it leaves."""
    n = at + tl.arange(0, _CHUNK)
    of_told = tl.load(n, mask=there, other=0.0)
    of_read = tl.load(n + _CHUNK, mask=there, other=0.0)
    return of_told, of_read, tl.load(n + 2 * _CHUNK, mask=there, other=0.0), tl.load(at + 3 * _CHUNK, mask=there)


@jit_alike("S")
def _delta_chunks_kernel(
    q_ptr, k_ptr, a_ptr, b_ptr, rate_ptr, bias_ptr, query_start_ptr, tiles_ptr, scales_ptr, S,
    stride_q, stride_k, stride_a, stride_b, scale,
    V: tl.constexpr, GROUPS: tl.constexpr, DK: tl.constexpr, BLOCK_K: tl.constexpr, SEQUENCES: tl.constexpr,
    SHORTEST: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """T and A of one chunk and head, and what products with its tokens are scaled by (`_scales`)."""
    head, place = tl.program_id(0), tl.program_id(1)
    s, chunks = _chunks(query_start_ptr, S, SEQUENCES, SHORTEST)
    sequence = tl.sum((tl.cumsum(chunks, 0) <= place).to(tl.int32), 0)
    if sequence < S:
        nth = place - tl.sum(tl.where(s < sequence, chunks, 0), 0)
        row = (tl.load(query_start_ptr + sequence) + nth * _CHUNK + tl.arange(0, _CHUNK)).to(tl.int64)
        live = row < tl.load(query_start_ptr + sequence + 1)
        d = tl.arange(0, BLOCK_K)
        key = (head // GROUPS) * DK + d[None, :]
        mask = live[:, None] & (d < DK)[None, :]
        q = tl.load(q_ptr + row[:, None] * stride_q + key, mask=mask, other=0.0)
        k = tl.load(k_ptr + row[:, None] * stride_k + key, mask=mask, other=0.0)
        a = tl.load(a_ptr + row * stride_a + head, mask=live, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + row * stride_b + head, mask=live, other=0.0).to(tl.float32)
        g = at_least(log_left(a, tl.load(rate_ptr + head), tl.load(bias_ptr + head)))
        beta = tl.where(live, 1 / (1 + tl.exp(-b)), 0.0)
        faded = tl.cumsum(tl.where(live, g, 0.0), 0)
        wide_q, wide_k = q.to(tl.float32), k.to(tl.float32)
        unit_q = tl.rsqrt(tl.sum(wide_q * wide_q, 1) + EPS) * scale
        unit_k = tl.rsqrt(tl.sum(wide_k * wide_k, 1) + EPS)
        i, j = tl.arange(0, _CHUNK)[:, None], tl.arange(0, _CHUNK)[None, :]
        between = tl.where(i >= j, tl.exp(tl.where(i >= j, faded[:, None] - faded[None, :], 0.0)), 0.0)
        between *= unit_k[None, :]
        system = tl.dot(k, tl.trans(k)) * between * (unit_k * beta)[:, None]
        reads = tl.dot(q, tl.trans(k)) * between * unit_q[:, None]
        at = (place * V + head).to(tl.int64)
        tile = tiles_ptr + at * (2 * _CHUNK * _CHUNK) + i * _CHUNK + j
        tl.store(tile + _CHUNK * _CHUNK, _narrow(reads, q.dtype))
        changes = unit_lower_inverse(tl.where(i > j, system, 0.0), _CHUNK) * beta[None, :]
        tl.store(tile, _narrow(changes, q.dtype))
        n = tl.arange(0, _CHUNK)
        left, last = tl.exp(faded), tl.sum(tl.where(n == _CHUNK - 1, faded, 0.0), 0)
        of = scales_ptr + at * (_SCALES * _CHUNK) + n
        tl.store(of, left * unit_k)
        tl.store(of + _CHUNK, left * unit_q)
        tl.store(of + 2 * _CHUNK, tl.exp(last - faded) * unit_k)
        tl.store(of + 3 * _CHUNK, tl.exp(last) + n * 0.0)


@jit_alike("slots_ptr", "S")
def _delta_walk_kernel(
    q_ptr, k_ptr, v_ptr, states_ptr, slots_ptr, query_start_ptr, context_ptr, tiles_ptr, scales_ptr, out_ptr, S,
    stride_q, stride_k, stride_v, stride_row,
    V: tl.constexpr, GROUPS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr, SEQUENCES: tl.constexpr, SHORTEST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Some columns of one head's state, from chunk to chunk of one sequence."""
    head, nth = tl.program_id(1), tl.program_id(2)
    s, chunks = _chunks(query_start_ptr, S, SEQUENCES, SHORTEST)
    sequence = tl.sum((tl.cumsum((chunks > 0).to(tl.int32), 0) <= nth).to(tl.int32), 0)
    if sequence < S:
        place = tl.sum(tl.where(s < sequence, chunks, 0), 0)
        begin, end = tl.load(query_start_ptr + sequence), tl.load(query_start_ptr + sequence + 1)
        slot = tl.load(slots_ptr + sequence).to(tl.int64)
        known = (slot >= 0) & (tl.load(context_ptr + sequence) > end - begin)
        d, column = tl.arange(0, BLOCK_K), tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
        kept = states_ptr + slot * stride_row + head * (DK * DV) + d[:, None] * DV + column[None, :]
        inside = (d < DK)[:, None] & (column < DV)[None, :]
        state = tl.load(kept, mask=inside & known, other=0.0)
        n = tl.arange(0, _CHUNK)
        row = begin.to(tl.int64) + n
        key = (head // GROUPS) * DK + d[None, :]
        q_at, k_at = q_ptr + row[:, None] * stride_q + key, k_ptr + row[:, None] * stride_k + key
        v_at = v_ptr + row[:, None] * stride_v + head * DV + column[None, :]
        out_at = out_ptr + row[:, None] * (V * DV) + head * DV + column[None, :]
        at = (place * V + head).to(tl.int64)
        tile_at = tiles_ptr + at * (2 * _CHUNK * _CHUNK) + n[:, None] * _CHUNK + n[None, :]
        scale_at = scales_ptr + at * (_SCALES * _CHUNK)
        of_told, of_read, of_taken, left = _scales(scale_at, True)
        for first in tl.range(begin, end, _CHUNK, num_stages=STAGES):
            live = (first + n < end)[:, None]
            scale_at += V * (_SCALES * _CHUNK)
            scales = _scales(scale_at, first + _CHUNK < end)  # of the next chunk: nobody waits for them
            k = tl.load(k_at, mask=live & (d < DK)[None, :], other=0.0)
            v = tl.load(v_at, mask=live & (column < DV)[None, :], other=0.0)
            before = _narrow(state, k.dtype)
            told = tl.dot(k, before) * of_told[:, None]
            changes = tl.dot(tl.load(tile_at), _narrow(v.to(tl.float32) - told, k.dtype))
            q = tl.load(q_at, mask=live & (d < DK)[None, :], other=0.0)
            read = tl.dot(q, before) * of_read[:, None]
            read = tl.dot(tl.load(tile_at + _CHUNK * _CHUNK), _narrow(changes, k.dtype), read)
            tl.store(out_at, read.to(out_ptr.dtype.element_ty), mask=live & (column < DV)[None, :])
            taken = _narrow(changes * of_taken[:, None], k.dtype)
            state = tl.dot(tl.trans(k), taken, state * left)
            q_at += _CHUNK * stride_q
            k_at += _CHUNK * stride_k
            v_at += _CHUNK * stride_v
            out_at += _CHUNK * (V * DV)
            tile_at += V * (2 * _CHUNK * _CHUNK)
            of_told, of_read, of_taken, left = scales
        tl.store(kept, state, mask=inside & (slot >= 0))
