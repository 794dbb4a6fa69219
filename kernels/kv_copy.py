"""Moves whole KV blocks out of a cache, and into one of another replica."""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels import dispatch
from kernels.float8_kv import bits
from kernels.language import cdiv, jit, next_power_of_2, tl


def gather_blocks(cache: Tensor, block_ids: Tensor, out: Tensor | None = None) -> Tensor:
    """Return blocks `block_ids` [n] (int32 or int64) of `cache` [N, ...] as one dense tensor [n, ...], or fill `out`.

    Each block of `out` must be contiguous; they may lie apart.
    """
    _check(cache, block_ids)
    n = block_ids.shape[0]
    shape = (n, *cache.shape[1:])
    if out is None:
        out = torch.empty(shape, dtype=cache.dtype, device=cache.device)
    elif out.shape != shape or out.dtype != cache.dtype or not _has_whole_blocks(out):
        raise ValueError(f"out is {out.dtype} {tuple(out.shape)}; it must be {cache.dtype} {shape}, blocks contiguous")
    if dispatch.form(cache) == "triton":
        _launch(bits(cache), bits(out), block_ids, gather=True)
    else:
        torch.index_select(bits(cache), 0, block_ids, out=bits(out))
    return out


def scatter_blocks(source: Tensor, cache: Tensor, block_ids: Tensor) -> None:
    """Write `source` [n, ...] to blocks `block_ids` [n] of `cache` [N, ...]; the ids must differ."""
    _check(cache, block_ids)
    if source.shape != (block_ids.shape[0], *cache.shape[1:]) or source.dtype != cache.dtype:
        raise ValueError(
            f"source is {source.dtype} {tuple(source.shape)}; it must hold {block_ids.shape[0]} blocks of cache"
        )
    if dispatch.form(cache) == "triton":
        whole = source if _has_whole_blocks(source) else source.contiguous()
        _launch(bits(whole), bits(cache), block_ids, gather=False)
    else:
        bits(cache).index_copy_(0, block_ids.long(), bits(source))


def _check(cache: Tensor, block_ids: Tensor) -> None:
    if cache.dim() < 2 or not _has_whole_blocks(cache):
        raise ValueError(f"cache has shape {tuple(cache.shape)}; it must be [N, ...] with contiguous blocks")
    if block_ids.dim() != 1 or block_ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"block_ids is {block_ids.dtype} {tuple(block_ids.shape)}; it must be [n] int32 or int64")


def _has_whole_blocks(tensor: Tensor) -> bool:
    return not tensor.shape[0] or tensor[0].is_contiguous()


def _launch(source: Tensor, target: Tensor, ids: Tensor, *, gather: bool) -> None:
    size = source[0].numel() if source.shape[0] else 0
    if ids.shape[0] == 0 or size == 0:
        return
    # 4,096 elements a program at 4 warps: four 16-byte loads in flight a thread, and a block spans several programs.
    block = min(4096, next_power_of_2(size))
    _kv_copy_kernel[(ids.shape[0], cdiv(size, block))](
        source, target, ids, size, source.stride(0), target.stride(0), GATHER=gather, BLOCK=block, num_warps=4
    )  # fmt: skip


@jit
def _kv_copy_kernel(
    source_ptr, target_ptr, ids_ptr, size, source_stride, target_stride, GATHER: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    block = tl.load(ids_ptr + i).to(tl.int64)
    source, target = i, block
    if GATHER:
        source, target = block, i
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source_ptr + source * source_stride + at, mask=at < size)
    tl.store(target_ptr + target * target_stride + at, value, mask=at < size)
