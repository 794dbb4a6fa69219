"""Writes the step's latents into the paged cache: each token's, and what carries its position, to its slot.

A line of the cache is both, one behind the other; a slot is block * B + offset in the block.
"""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels import dispatch
from kernels.float8_kv import KvScales, bits, rounded, stored
from kernels.language import jit, next_power_of_2, tl
from kernels.native import record


def store_latent(latent: Tensor, rope: Tensor, cache: Tensor, slot_mapping: Tensor, scale: float = 1.0) -> None:
    """Write `latent` [T, R] and `rope` [T, P] to slots `slot_mapping` [T] (int64) of `cache` [N, B, 1, R + P].

    A slot below 0 is skipped (padding). Numbers take the cache's dtype; in float8_e4m3fn, divided by `scale`.
    """
    _check(latent, rope, cache, slot_mapping)
    over, _ = KvScales(scale).inverse(cache)
    if dispatch.form(cache) == "triton":
        _launch(latent, rope, cache, slot_mapping, over)
    else:
        record.refuse("latents are stored by torch")
        reference(latent, rope, cache, slot_mapping, over)


def reference(latent: Tensor, rope: Tensor, cache: Tensor, slot_mapping: Tensor, over: float = 1.0) -> None:
    """Scatter in plain torch."""
    kept = slot_mapping >= 0
    slots, lines = slot_mapping[kept], torch.cat((latent, rope), -1)[kept]
    B = cache.shape[1]
    block, offset = torch.div(slots, B, rounding_mode="floor"), slots % B
    bits(cache)[block, offset, 0] = bits(rounded(lines, cache.dtype, over))


def _check(latent: Tensor, rope: Tensor, cache: Tensor, slot_mapping: Tensor) -> None:
    if latent.dim() != 2 or rope.dim() != 2 or rope.shape[0] != latent.shape[0]:
        raise ValueError(f"latent {tuple(latent.shape)} and rope {tuple(rope.shape)} must be [T, R] and [T, P]")
    width = latent.shape[1] + rope.shape[1]
    if cache.dim() != 4 or cache.shape[2:] != (1, width):
        raise ValueError(f"cache has shape {tuple(cache.shape)}; it must be [N, B, 1, {width}]")
    if slot_mapping.shape != latent.shape[:1] or slot_mapping.dtype != torch.int64:
        shape = tuple(slot_mapping.shape)
        raise ValueError(f"slot_mapping is {slot_mapping.dtype} {shape}; it must be int64 ({latent.shape[0]},)")
    for name, tensor in (("latent", latent), ("rope", rope), ("cache", cache)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} must be contiguous in its last dimension")


def _launch(latent: Tensor, rope: Tensor, cache: Tensor, slot_mapping: Tensor, over: float) -> None:
    T, R = latent.shape
    P = rope.shape[1]
    if T == 0:
        return
    # A program for each token: a line is 1 KB, one load of 16 bytes for each of 64 threads.
    _store_latent_kernel[(T,)](
        latent, rope, cache, slot_mapping, over, cache.shape[1],
        latent.stride(0), rope.stride(0), cache.stride(0), cache.stride(1),
        R=R, P=P, BLOCK_R=next_power_of_2(R), BLOCK_P=next_power_of_2(P), num_warps=2,
    )  # fmt: skip


@jit
def _store_latent_kernel(
    latent_ptr, rope_ptr, cache_ptr, slot_ptr, over, B, latent_stride, rope_stride, stride_n, stride_b,
    R: tl.constexpr, P: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if slot >= 0:
        r, p = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_P)
        latent = tl.load(latent_ptr + token * latent_stride + r, mask=r < R)
        rope = tl.load(rope_ptr + token * rope_stride + p, mask=p < P)
        line = cache_ptr + (slot // B) * stride_n + (slot % B) * stride_b
        tl.store(line + r, stored(latent, over, cache_ptr), mask=r < R)
        tl.store(line + R + p, stored(rope, over, cache_ptr), mask=p < P)
