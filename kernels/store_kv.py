"""Writes the step's keys and values into the paged cache, each token to its slot (block * B + offset in the block)."""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels import dispatch
from kernels.float8_kv import ONES, KvScales, bits, rounded, stored
from kernels.language import cdiv, jit, next_power_of_2, tl
from kernels.native import record

_NATIVE_D = 512  # MAX_D in rope.c


def store_kv(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, scales: KvScales = ONES
) -> None:
    """Write `k` and `v` [T, K, D] to slots `slot_mapping` [T] (int64) of `k_cache` and `v_cache` [N, B, K, D].

    A slot below 0 is skipped (padding). Values take the cache's dtype; in float8_e4m3fn, divided by their scale.
    """
    check(k, v, k_cache, v_cache, slot_mapping)
    if dispatch.form(k_cache) == "triton":
        _launch(k, v, k_cache, v_cache, slot_mapping, scales)
    elif dispatch.form(k) == "native" and plain(k, v) and native_cache(k_cache):
        native(k, k, v, None, None, None, k_cache, v_cache, slot_mapping, False)
    else:
        reference(k, v, k_cache, v_cache, slot_mapping, scales)


def reference(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, scales: KvScales = ONES
) -> None:
    """Scatter in plain torch."""
    slots = slot_mapping.long()
    if bool((slots < 0).any()):
        kept = slots >= 0
        k, v, slots = k[kept], v[kept], slots[kept]
    B = k_cache.shape[1]
    block, offset = torch.div(slots, B, rounding_mode="floor"), slots % B
    for new, cache, over in zip((k, v), (k_cache, v_cache), scales.inverse(k_cache), strict=True):
        bits(cache)[block, offset] = bits(rounded(new, cache.dtype, over))


def native(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    interleaved: bool,
) -> None:
    """Run the C form of rope_store_kv; without tables it has nothing to rotate and only stores."""
    T, H, D = q.shape
    N, B, K = k_cache.shape[:3]
    pairs, stride, length = (0, 0, 0) if cos is None else (cos.shape[1], cos.stride(0), cos.shape[0])
    wide = positions is not None and positions.dtype == torch.int64
    numbers = (
        T, H, K, D, pairs, stride, B, *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *k_cache.stride()[:3],
        int(interleaved), int(wide), length, N * B, int(k_cache.dtype == torch.float16),
    )  # fmt: skip
    tensors = (q, k, v, cos, sin, positions, k_cache, v_cache, slot_mapping)
    record.call([record.Record(record.ROPE, numbers, tuple(map(record.pointer, tensors)))], tensors)


def native_cache(cache: Tensor) -> bool:
    """Tell whether the C form can write (and read) this cache."""
    return cache.dtype == torch.float32 or (cache.dtype == torch.float16 and cache.shape[3] <= _NATIVE_D)


def plain(*tensors: Tensor) -> bool:
    """Tell whether the C form can read these: float32, and contiguous in the last dimension."""
    return all(tensor.dtype == torch.float32 and tensor.stride(-1) == 1 for tensor in tensors)


def check(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Raise ValueError naming the argument that does not fit (also for rope_store_kv)."""
    if k.dim() != 3 or v.shape != k.shape:
        raise ValueError(f"k {tuple(k.shape)} and v {tuple(v.shape)} must both be [T, K, D]")
    if k_cache.dim() != 4 or k_cache.shape[2:] != k.shape[1:]:
        raise ValueError(f"k_cache has shape {tuple(k_cache.shape)}; it must be [N, B, {k.shape[1]}, {k.shape[2]}]")
    if v_cache.shape != k_cache.shape or v_cache.stride() != k_cache.stride():
        raise ValueError("v_cache must have the shape and strides of k_cache")
    if slot_mapping.shape != k.shape[:1] or slot_mapping.dtype != torch.int64:
        shape = tuple(slot_mapping.shape)
        raise ValueError(f"slot_mapping is {slot_mapping.dtype} {shape}; it must be int64 ({k.shape[0]},)")
    for name, tensor in (("k", k), ("v", v), ("k_cache", k_cache)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} must be contiguous in its last dimension")


def _launch(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, scales: KvScales) -> None:
    T, K, D = k.shape
    if T == 0:
        return
    block_d = next_power_of_2(D)
    # About 2,048 elements of keys and as many of values a program; each head is one line of D contiguous elements.
    heads = min(next_power_of_2(K), max(2048 // block_d, 1))
    _store_kv_kernel[(T, cdiv(K, heads))](
        k, v, k_cache, v_cache, slot_mapping, *scales.inverse(k_cache), K, k_cache.shape[1],
        k.stride(0), k.stride(1), v.stride(0), v.stride(1), k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        D=D, BLOCK_D=block_d, HEADS=heads, num_warps=4,
    )  # fmt: skip


@jit
def _store_kv_kernel(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slot_ptr, k_over, v_over, K, B,
    k_stride_t, k_stride_h, v_stride_t, v_stride_h, stride_n, stride_b, stride_h,
    D: tl.constexpr, BLOCK_D: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if slot >= 0:
        head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
        d = tl.arange(0, BLOCK_D)[None, :]
        live = (head < K) & (d < D)
        k = tl.load(k_ptr + token * k_stride_t + head * k_stride_h + d, mask=live)
        v = tl.load(v_ptr + token * v_stride_t + head * v_stride_h + d, mask=live)
        to = (slot // B) * stride_n + (slot % B) * stride_b + head * stride_h + d
        tl.store(k_cache_ptr + to, stored(k, k_over, k_cache_ptr), mask=live)
        tl.store(v_cache_ptr + to, stored(v, v_over, v_cache_ptr), mask=live)
