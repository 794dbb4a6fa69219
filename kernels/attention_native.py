"""Paged attention by the C kernel, for float32 queries on a CPU."""

import torch
from torch import Tensor

from kernels.attention_step import Step
from kernels.language import cdiv
from kernels.native import record
from kernels.native.library import threads

_SPLIT = 512  # keys; SPLIT in attention.c
_FLOATS, _ROWS, _MAX_D = 8192, 64, 576  # the C form's accumulators


def fits(q: Tensor, k_cache: Tensor, out: Tensor, sinks: Tensor | None) -> bool:
    """Tell whether the C form serves a call: float32 around a cache of float32 or float16, heads that it can hold."""
    H, D = q.shape[1:]
    group = H // k_cache.shape[2]
    floats = all(tensor.dtype == torch.float32 for tensor in (q, out, *(() if sinks is None else (sinks,))))
    floats = floats and k_cache.dtype in (torch.float32, torch.float16)
    return floats and holds(group, D)


def holds(group: int, D: int) -> bool:
    """Tell whether the C form can hold as many heads of D numbers as share a KV head."""
    return D <= _MAX_D and group <= _ROWS and group * cdiv(D, 16) * 16 <= _FLOATS


def run(step: Step, max_context_len: int, decodes: bool) -> None:
    """Run the C form. A few decodes of long contexts have too few heads to share among threads: splits are shared."""
    T, H, D = step.q.shape
    S, K = step.context_lens.shape[0], step.k_cache.shape[2]
    splits = cdiv(max_context_len, _SPLIT) + (step.window > 0)  # a window may begin within a split
    # Tapes are made for any length, so the record may not depend on this step's.
    if not decodes or 4 * threads() <= S * K or splits == 1 or record.recorder is not None:
        splits = 0
    partial = record.empty((S, splits, H, cdiv(D, 16) * 16 + 2)) if splits else None
    tables = step.block_tables if step.block_tables.stride(1) == 1 else step.block_tables.contiguous()
    numbers = (
        T, S, H, K, D, step.k_cache.shape[1], tables.stride(0), *step.q.stride()[:2], *step.k_cache.stride()[:3],
        step.window, splits, step.k_cache.shape[0], int(step.k_cache.dtype == torch.float16),
    )  # fmt: skip
    tensors = (
        step.q, step.k_cache, step.v_cache, tables, step.query_start, step.context_lens, step.sinks, step.out, partial
    )  # fmt: skip
    pointers, floats = tuple(map(record.pointer, tensors)), (step.scale, step.softcap)
    kinds = (record.ATTENTION, record.MERGE) if splits else (record.ATTENTION,)
    record.call([record.Record(kind, numbers, pointers, floats) for kind in kinds], tensors)
