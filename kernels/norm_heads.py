"""What stands between a plain projection of few rows and attention, in one kernel: norms of heads, rotation, store.

Where nothing but a rotation of whole heads is between them, the projection itself turns and stores
(`few_rows.norm_qkv`). A norm needs all of a head, which no tile of the projection holds: one more kernel a layer.
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

from torch import Tensor

from kernels import dependent, dispatch, rms_norm, rope
from kernels.few_rows_product import Rotation
from kernels.float8_kv import stored
from kernels.language import TRITON_INSTALLED, jit, next_power_of_2, tl

if TRITON_INSTALLED:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@dataclass(frozen=True)
class HeadNorms:
    """Norms over each head of queries and of keys, y = x / rms(x) * (offset + weight), with `q` and `k` [D]."""

    q: Tensor
    k: Tensor
    eps: float
    offset: float = 0.0


def norm_heads(
    qkv: Tensor, head_dim: int, turn: Rotation, norms: HeadNorms | None = None, *, interleaved: bool = False
) -> None:
    """Norm and turn queries and keys of `qkv` [T, (H + 2K) D] in place; write keys and values to the caches.

    Tables for R <= D dims turn the first R of a head. Pairs are (d, d + R/2), or neighbours if `interleaved`.
    """
    K, R = turn.k_cache.shape[2], 2 * turn.cos.shape[1]
    if qkv.dim() != 2 or not qkv.is_contiguous() or qkv.shape[1] % head_dim or qkv.shape[1] <= 2 * K * head_dim:
        raise ValueError(f"qkv has shape {tuple(qkv.shape)}; it must be contiguous [T, (H + 2 * {K}) * {head_dim}]")
    if turn.k_cache.shape[3] != head_dim or head_dim < R:
        raise ValueError(f"heads of {turn.k_cache.shape[3]} in the cache, of which {R} dims turn, are not {head_dim}")
    if norms is not None and not norms.q.shape == norms.k.shape == (head_dim,):
        raise ValueError(f"norms have {tuple(norms.q.shape)} and {tuple(norms.k.shape)}; both must be ({head_dim},)")
    if dispatch.form(qkv) == "triton":
        _launch(qkv, head_dim, turn, norms, interleaved)
    else:
        reference(qkv, head_dim, turn, norms, interleaved=interleaved)


def reference(
    qkv: Tensor, head_dim: int, turn: Rotation, norms: HeadNorms | None, *, interleaved: bool = False
) -> None:
    """Norm, rotate and store in plain torch."""
    K = turn.k_cache.shape[2]
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    q, k, v = heads[:, : -2 * K], heads[:, -2 * K : -K], heads[:, -K:]
    if norms is not None:
        for part, weight in zip((q, k), (norms.q, norms.k), strict=True):
            part.copy_(rms_norm.reference(part, weight, norms.eps, offset=norms.offset))
    rope.rope_store_kv(
        q, k, v, turn.cos, turn.sin, turn.positions, turn.k_cache, turn.v_cache, turn.slot_mapping, turn.scales,
        interleaved=interleaved,
    )  # fmt: skip
    rope.reference(q[:, :0], k, turn.cos, turn.sin, turn.positions, interleaved=interleaved)


def _launch(qkv: Tensor, head_dim: int, turn: Rotation, norms: HeadNorms | None, interleaved: bool) -> None:
    T, width = qkv.shape
    B, K = turn.k_cache.shape[1:3]
    pairs = turn.cos.shape[1]
    normed = (None,) * 4 if norms is None else (norms.q, norms.k, norms.eps, norms.offset)
    if T == 0:
        return
    # A head is a program of one warp: its sum needs no shared memory, and one row is 40 programs of an 8B layer.
    _norm_heads_kernel[(T, width // head_dim)](
        qkv, *normed, turn.cos, turn.sin, turn.positions, turn.k_cache, turn.v_cache, turn.slot_mapping,
        turn.cos.stride(0), *turn.k_cache.stride()[:3], *turn.scales.inverse(turn.k_cache),
        D=head_dim, HEADS=width // head_dim - 2 * K, KV_HEADS=K, B=B, PAIRS=pairs, BLOCK=next_power_of_2(pairs),
        REST=next_power_of_2(head_dim - 2 * pairs) if head_dim > 2 * pairs else 0, WHOLE=next_power_of_2(head_dim),
        INTERLEAVED=interleaved, num_warps=1, **dependent.launch(qkv),
    )  # fmt: skip


@jit
def _norm_heads_kernel(
    qkv_ptr, q_norm_ptr, k_norm_ptr, eps, offset, cos_ptr, sin_ptr, positions_ptr, k_cache_ptr, v_cache_ptr, slots_ptr,
    table_stride, stride_n, stride_b, stride_h, k_over, v_over,
    D: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, B: tl.constexpr, PAIRS: tl.constexpr,
    BLOCK: tl.constexpr, REST: tl.constexpr, WHOLE: tl.constexpr, INTERLEAVED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pair = tl.arange(0, BLOCK)
    a_at, b_at = (2 * pair, 2 * pair + 1) if INTERLEAVED else (pair, PAIRS + pair)
    turned = pair < PAIRS
    angle = tl.load(positions_ptr + token).to(tl.int64) * table_stride + pair
    cos = tl.load(cos_ptr + angle, mask=turned, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle, mask=turned, other=0.0).to(tl.float32)
    slot = tl.load(slots_ptr + token)
    to = (slot // B) * stride_n + (slot % B) * stride_b
    row = qkv_ptr + (token * (HEADS + 2 * KV_HEADS) + head) * D
    if PDL:
        gdc_wait()
    if head < HEADS + KV_HEADS:
        a = tl.load(row + a_at, mask=turned, other=0.0).to(tl.float32)
        b = tl.load(row + b_at, mask=turned, other=0.0).to(tl.float32)
        key = k_cache_ptr + to + (head - HEADS) * stride_h
        kept = (head >= HEADS) & (slot >= 0)
        inverse = 1.0
        if REST > 0:  # dims behind the pairs go as they are, or normed
            d = 2 * PAIRS + tl.arange(0, REST)
            c = tl.load(row + d, mask=d < D, other=0.0).to(tl.float32)
        if q_norm_ptr is not None:
            weights = q_norm_ptr
            if head >= HEADS:
                weights = k_norm_ptr
            squares = tl.sum(a * a, 0) + tl.sum(b * b, 0)
            if REST > 0:
                squares += tl.sum(c * c, 0)
            inverse = tl.rsqrt(squares / D + eps)
            a *= inverse * _scale(weights, a_at, turned, offset)
            b *= inverse * _scale(weights, b_at, turned, offset)
        x, y = (a * cos - b * sin).to(qkv_ptr.dtype.element_ty), (b * cos + a * sin).to(qkv_ptr.dtype.element_ty)
        tl.store(row + a_at, x, mask=turned)
        tl.store(row + b_at, y, mask=turned)
        tl.store(key + a_at, stored(x, k_over, k_cache_ptr), mask=turned & kept)
        tl.store(key + b_at, stored(y, k_over, k_cache_ptr), mask=turned & kept)
        if REST > 0:
            if q_norm_ptr is not None:
                c *= inverse * _scale(weights, d, d < D, offset)
            c = c.to(qkv_ptr.dtype.element_ty)
            tl.store(row + d, c, mask=d < D)
            tl.store(key + d, stored(c, k_over, k_cache_ptr), mask=(d < D) & kept)
    elif slot >= 0:
        d = tl.arange(0, WHOLE)
        value = tl.load(row + d, mask=d < D)
        at = v_cache_ptr + to + (head - HEADS - KV_HEADS) * stride_h + d
        tl.store(at, stored(value, v_over, v_cache_ptr), mask=d < D)


@jit
def _scale(weights, at, inside, offset):
    return tl.load(weights + at, mask=inside, other=0.0).to(tl.float32) + offset
