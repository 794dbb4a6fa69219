"""Rotary position embedding of queries and keys, in place; also fused with the store of keys and values.

Dimension pairs of the first R dims are turned by position * frequency; the tables hold cos and sin for each position
and pair, so plain, Llama-3, YaRN and linear scaling are the same op with other tables. Pairs are (i, i + R/2) as in
GPT-NeoX and Hugging Face's Llama, or neighbours (2i, 2i + 1) with `interleaved` (GPT-J, Cohere). Computed in float32.
"""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels import dispatch, store_kv
from kernels.float8_kv import ONES, KvScales, stored
from kernels.language import cdiv, jit, next_power_of_2, tl


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool = False) -> None:
    """Rotate `q` [T, H, D] and `k` [T, K, D] in place by `cos` and `sin` [P, R/2] at `positions` [T]."""
    _check(q, k, cos, sin, positions)
    if dispatch.form(q) == "triton":
        _launch(q, k, None, cos, sin, positions, None, None, None, interleaved)
    else:
        reference(q, k, cos, sin, positions, interleaved=interleaved)


def rope_store_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    scales: KvScales = ONES,
    *,
    interleaved: bool = False,
) -> None:
    """Rotate `q` in place and write rotated `k` and plain `v` [T, K, D] to their slots of the caches [N, B, K, D].

    `k` itself is left as it was: attention reads the cache. A slot below 0 is skipped. `scales` as in `store_kv`.
    """
    _check(q, k, cos, sin, positions)
    store_kv.check(k, v, k_cache, v_cache, slot_mapping)
    if dispatch.form(q) == "triton":
        _launch(q, k, v, cos, sin, positions, k_cache, v_cache, slot_mapping, interleaved, scales)
    elif dispatch.form(q) == "native" and store_kv.plain(q, k, v, cos) and store_kv.native_cache(k_cache):
        store_kv.native(q, k, v, cos, sin, positions, k_cache, v_cache, slot_mapping, interleaved)
    else:
        pick = _tables(cos, sin, positions)
        _rotate(q, *pick, interleaved)
        k = k.clone()
        _rotate(k, *pick, interleaved)
        store_kv.reference(k, v, k_cache, v_cache, slot_mapping, scales)


def reference(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool = False) -> None:
    """Rotate in plain torch."""
    pick = _tables(cos, sin, positions)
    _rotate(q, *pick, interleaved)
    _rotate(k, *pick, interleaved)


def _tables(cos: Tensor, sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    return cos[positions][:, None].float(), sin[positions][:, None].float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> None:
    half = cos.shape[-1]
    R = 2 * half
    first, second = (slice(0, R, 2), slice(1, R, 2)) if interleaved else (slice(half), slice(half, R))
    a, b = x[..., first].float(), x[..., second].float()
    x[..., first], x[..., second] = a * cos - b * sin, b * cos + a * sin


def _check(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
    if q.dim() != 3:
        raise ValueError(f"q has shape {tuple(q.shape)}; it must be [T, H, D]")
    if k.dim() != 3 or (k.shape[0], k.shape[2]) != (q.shape[0], q.shape[2]):
        raise ValueError(f"k has shape {tuple(k.shape)}; it must be [{q.shape[0]}, K, {q.shape[2]}]")
    if cos.dim() != 2 or not 2 * cos.shape[1] <= q.shape[2]:
        raise ValueError(f"cos has shape {tuple(cos.shape)}; it must be [P, R/2] with R <= {q.shape[2]}")
    if sin.shape != cos.shape or sin.stride() != cos.stride():
        raise ValueError("sin must have the shape and strides of cos")
    if positions.shape != q.shape[:1] or positions.dtype not in (torch.int32, torch.int64):
        shape = tuple(positions.shape)
        raise ValueError(f"positions is {positions.dtype} {shape}; it must be int32 or int64 ({q.shape[0]},)")
    if q.stride(-1) != 1 or k.stride(-1) != 1 or cos.stride(-1) != 1:
        raise ValueError("q, k and cos must be contiguous in their last dimension")


def _launch(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    k_cache: Tensor | None,
    v_cache: Tensor | None,
    slot_mapping: Tensor | None,
    interleaved: bool,
    scales: KvScales = ONES,
) -> None:
    T, H, D = q.shape
    K, pairs = k.shape[1], cos.shape[1]
    if T == 0:
        return
    block = next_power_of_2(pairs)
    # A program holds one token and about 1,024 pairs: many programs for a prefill, and enough of them for one token.
    heads = min(next_power_of_2(max(H, K)), max(1024 // block, 1))
    q_groups, k_groups = cdiv(H, heads), cdiv(K, heads)
    cache = k_cache if k_cache is not None else q.new_empty(1, 1, 1, 1)
    _rope_kernel[(T, q_groups + k_groups)](
        q, k, v if v is not None else k, cos, sin, positions,
        cache, v_cache if v_cache is not None else cache, slot_mapping if slot_mapping is not None else positions,
        *scales.inverse(cache), q_groups, H, K, cos.stride(0), cache.shape[1],
        q.stride(0), q.stride(1), k.stride(0), k.stride(1),
        v.stride(0) if v is not None else 0, v.stride(1) if v is not None else 0,
        cache.stride(0), cache.stride(1), cache.stride(2),
        D=D, BLOCK_D=next_power_of_2(D), PAIRS=pairs, BLOCK=block, HEADS=heads,
        INTERLEAVED=interleaved, STORE=v is not None, num_warps=4,
    )  # fmt: skip


@jit
def _rope_kernel(
    q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, positions_ptr, k_cache_ptr, v_cache_ptr, slot_ptr, k_over, v_over,
    q_groups, H, K, table_stride, B, q_stride_t, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h,
    stride_n, stride_b, stride_h,
    D: tl.constexpr, BLOCK_D: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr,
    INTERLEAVED: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    pair = tl.arange(0, BLOCK)
    at = tl.load(positions_ptr + token).to(tl.int64) * table_stride + pair
    cos = tl.load(cos_ptr + at, mask=pair < PAIRS, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + at, mask=pair < PAIRS, other=0.0).to(tl.float32)[None, :]
    if INTERLEAVED:
        first, second = 2 * pair[None, :], 2 * pair[None, :] + 1
    else:
        first, second = pair[None, :], PAIRS + pair[None, :]
    if group < q_groups:
        head = (group * HEADS + tl.arange(0, HEADS))[:, None]
        live = (head < H) & (pair < PAIRS)[None, :]
        base = q_ptr + token * q_stride_t + head * q_stride_h
        a = tl.load(base + first, mask=live, other=0.0).to(tl.float32)
        b = tl.load(base + second, mask=live, other=0.0).to(tl.float32)
        tl.store(base + first, (a * cos - b * sin).to(q_ptr.dtype.element_ty), mask=live)
        tl.store(base + second, (b * cos + a * sin).to(q_ptr.dtype.element_ty), mask=live)
    else:
        head = ((group - q_groups) * HEADS + tl.arange(0, HEADS))[:, None]
        live = (head < K) & (pair < PAIRS)[None, :]
        base = k_ptr + token * k_stride_t + head * k_stride_h
        a = tl.load(base + first, mask=live, other=0.0).to(tl.float32)
        b = tl.load(base + second, mask=live, other=0.0).to(tl.float32)
        # Rounded to k's dtype first, so that the cache holds what rope and store_kv would have left there.
        x, y = (a * cos - b * sin).to(k_ptr.dtype.element_ty), (b * cos + a * sin).to(k_ptr.dtype.element_ty)
        if STORE:
            slot = tl.load(slot_ptr + token)
            if slot >= 0:
                to = (slot // B) * stride_n + (slot % B) * stride_b + head * stride_h
                tl.store(k_cache_ptr + to + first, stored(x, k_over, k_cache_ptr), mask=live)
                tl.store(k_cache_ptr + to + second, stored(y, k_over, k_cache_ptr), mask=live)
                d = tl.arange(0, BLOCK_D)[None, :]
                if D > 2 * PAIRS:  # dims behind the rotated ones go as they are
                    rest = (head < K) & (d >= 2 * PAIRS) & (d < D)
                    tail = tl.load(base + d, mask=rest)
                    tl.store(k_cache_ptr + to + d, stored(tail, k_over, k_cache_ptr), mask=rest)
                whole = (head < K) & (d < D)
                value = tl.load(v_ptr + token * v_stride_t + head * v_stride_h + d, mask=whole)
                tl.store(v_cache_ptr + to + d, stored(value, v_over, v_cache_ptr), mask=whole)
        else:
            tl.store(base + first, x, mask=live)
            tl.store(base + second, y, mask=live)
