"""Attention of a mixed batch over the paged KV cache: prefill over a cached prefix, decodes and drafts in one call.

Query i of a sequence with n queries and context c (new tokens included) stands at position c - n + i and sees the keys
at or before it. A short query block takes `decode_attention`: its queries and the heads that share a KV head form one
tile, the context is cut into splits, and the splits are added in their order (no atomics: the same input
gives the same bits). A long one takes `prefill_attention`. No dense copy of the cache, and no wait for the device.
"""

import torch
from torch import Tensor

from kernels import attention_native, decode_attention, dispatch, prefill_attention
from kernels.attention_reference import reference, reference_into
from kernels.attention_step import Step
from kernels.float8_kv import ONES, KvScales
from kernels.native import record
from kernels.step_layout import check_tables

__all__ = ["paged_attention", "reference"]


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    scales: KvScales = ONES,
    max_query_len: int | None = None,
    max_context_len: int | None = None,
    num_splits: int | None = None,
    out: Tensor | None = None,
    limits: Tensor | None = None,
) -> Tensor:
    """Return attention [T, H, D] of `q` [T, H, D] over `k_cache` and `v_cache` [N, B, K, D].

    `block_tables` [S, M], `query_start` [S + 1] and `context_lens` [S] are int32. A query sees the last `window` keys,
    its own included; `softcap` c turns a logit x into c * tanh(x / c); `sinks` [H] are logits that take part in the
    softmax and carry no value. `scales` are those of a float8_e4m3fn cache. `max_query_len` and `max_context_len` bound
    the step (defaults: T and M * B). `num_splits` fixes how a decode's context is cut, so that a row's bits do not
    depend on the batch. Rows behind query_start[S] are not written; a sequence with context 0 gives zeros. `limits` [T]
    are the last positions that queries see where some see keys behind their own; such calls take the reference.
    """
    _check(q, k_cache, v_cache, block_tables, query_start, context_lens, sinks)
    if scale <= 0:
        raise ValueError(f"scale is {scale}; it must be positive")
    if window is not None and window < 1:
        raise ValueError(f"window is {window}; it must be at least 1, or None")
    if out is None:
        native = q.dtype == torch.float32 and q.device.type == "cpu"
        out = record.empty(tuple(q.shape)) if native else torch.empty(q.shape, dtype=q.dtype, device=q.device)
    elif out.shape != q.shape or not out.is_contiguous():
        raise ValueError(f"out has shape {tuple(out.shape)}; it must be contiguous {tuple(q.shape)}")
    T, S = q.shape[0], context_lens.shape[0]
    if T == 0 or S == 0:
        return out
    k_scale, v_scale = scales.of(k_cache)
    step = Step(
        q, k_cache, v_cache, block_tables, query_start, context_lens, sinks, out, scale * k_scale, window or 0,
        softcap or 0.0, v_scale,
    )  # fmt: skip
    deepest = min(block_tables.shape[1] * k_cache.shape[1], max_context_len or 1 << 62)
    form = dispatch.form(q) if limits is None else "reference"
    if form == "triton":
        _launch(step, min(T, max_query_len or T), deepest, num_splits)
    elif form == "native" and attention_native.fits(q, k_cache, out, sinks):
        attention_native.run(step, deepest, max_query_len == 1)
    else:
        record.refuse("attention by torch looks at the lengths on the host")
        reference_into(
            out, q, k_cache, v_cache, block_tables, query_start, context_lens, step.scale, window, softcap, sinks,
            v_scale, limits,
        )  # fmt: skip
    return out


def _check(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    sinks: Tensor | None,
) -> None:
    if q.dim() != 3 or q.stride(-1) != 1:
        raise ValueError(f"q has shape {tuple(q.shape)}; it must be [T, H, D], contiguous in its last dimension")
    if k_cache.dim() != 4 or k_cache.shape[3] != q.shape[2] or k_cache.stride(-1) != 1:
        raise ValueError(f"k_cache has shape {tuple(k_cache.shape)}; it must be [N, B, K, {q.shape[2]}]")
    if v_cache.shape != k_cache.shape or v_cache.stride() != k_cache.stride():
        raise ValueError("v_cache must have the shape and strides of k_cache")
    if q.shape[1] % k_cache.shape[2]:
        raise ValueError(f"q has {q.shape[1]} heads, not a multiple of the cache's {k_cache.shape[2]}")
    check_tables(block_tables, query_start, context_lens)
    if sinks is not None and sinks.shape != q.shape[1:2]:
        raise ValueError(f"sinks has shape {tuple(sinks.shape)}; it must be ({q.shape[1]},)")


def _launch(step: Step, max_query_len: int, max_context_len: int, num_splits: int | None) -> None:
    if step.q.dtype == torch.bfloat16 and not step.q.is_cuda:
        raise ValueError("q is bfloat16: Triton's interpreter cannot multiply that; use float32 or float16")
    H, K = step.q.shape[1], step.k_cache.shape[2]
    if dispatch.fixed():  # one kernel for all, which walks the keys from the first on: a row's bits are its own
        prefill_attention.launch(step, 0, max_context_len)
        return
    decode_limit = max(1, decode_attention.DECODE_ROWS // (H // K))
    if max_query_len > decode_limit and prefill_attention.takes_all(step, max_context_len):
        prefill_attention.launch(step, 0, max_context_len)
        return
    decode_attention.launch(step, min(decode_limit, max_query_len), max_context_len, num_splits)
    if max_query_len > decode_limit:
        prefill_attention.launch(step, decode_limit, max_context_len)
