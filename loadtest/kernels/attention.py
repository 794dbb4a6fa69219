"""Cases of attention: decodes, drafts, prompts, and steps of few rows."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels import few_rows_attention as few_attention_op
from kernels import paged_attention as attention_op
from kernels.float8_kv import DTYPE
from loadtest.device_time import Run
from loadtest.kernels.case import BF16, CUDA, Case, randn


def paged_attention() -> Iterator[Case]:
    for S, context in ((64, 4096), (1, 8192), (8, 4096), (32, 2048), (128, 256), (256, 512), (1, 512)):
        yield _decode_case(S, context, 1)
    yield _decode_case(64, 2048, 4)
    for S, n in ((4, 4096), (1, 8192), (1, 2048), (32, 1024)):
        yield _prefill_case(S, n, n)
    yield _prefill_case(1, 2048, 8192)
    for S, context in ((64, 4096), (256, 512), (8, 4096)):
        yield _in_8_bits(_decode_case(S, context, 1, DTYPE), _decode_case(S, context, 1))
    yield _in_8_bits(_decode_case(64, 2048, 4, DTYPE), _decode_case(64, 2048, 4))
    for S, n, context in ((4, 4096, 4096), (1, 2048, 8192)):
        yield _in_8_bits(_prefill_case(S, n, context, DTYPE), _prefill_case(S, n, context))


def _in_8_bits(case: Case, whole: Case) -> Case:
    return replace(case, shape=f"{case.shape}, 8 bit", rival="bf16 cache", rival_runs=whole.runs)


def _attention_run(S: int, n: int, context: int, kept: torch.dtype) -> Run:
    B, H, K, D = 16, 32, 8, 128
    width = context // B
    q, cache = randn(S * n, H, D), randn(2, S * width, B, K, D).to(kept)
    tables = torch.randperm(S * width, device=CUDA).int().view(S, width)
    starts = torch.arange(0, S * n + 1, n, device=CUDA, dtype=torch.int32)
    lens = torch.full((S,), context, device=CUDA, dtype=torch.int32)
    return partial(
        attention_op.paged_attention, q, cache[0], cache[1], tables, starts, lens,
        scale=D**-0.5, max_query_len=n, max_context_len=context,
    )  # fmt: skip


def _decode_case(S: int, context: int, n: int, kept: torch.dtype = BF16) -> Case:
    sets = 1 if S * context > 1 << 16 else 4
    return Case(
        f"decode {S} x {context}" + (f", {n} drafts" if n > 1 else ""),
        [_attention_run(S, n, context, kept) for _ in range(sets)],
        bytes=2 * kept.itemsize * S * context * 8 * 128,
    )


def _prefill_case(S: int, n: int, context: int, kept: torch.dtype = BF16) -> Case:
    q, k, v = randn(S, 32, n, 128), randn(S, 8, n, 128), randn(S, 8, n, 128)

    def cudnn() -> object:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    pairs = n * (context - n) + n * (n + 1) // 2
    return Case(
        f"prefill {S} x {n}" + (f" after {context - n}" if context > n else ""),
        [_attention_run(S, n, context, kept)],
        flops=4 * S * 32 * 128 * pairs,
        rival="cuDNN" if context == n else "",
        rival_runs=[cudnn] if context == n else [],
    )


def few_rows_attention() -> Iterator[Case]:
    """Attention of a decode step with few rows; beside it `paged_attention`."""
    K, D, B = 8, 128, 16
    for T, context in ((1, 512), (8, 512), (32, 256), (64, 256), (64, 4096)):
        runs: list[Run] = []
        rivals: list[Run] = []
        kept: list[Run] = []
        starts = torch.arange(T + 1, device=CUDA, dtype=torch.int32)
        lens = torch.full((T,), context, device=CUDA, dtype=torch.int32)
        arrived = torch.zeros(T * K, device=CUDA, dtype=torch.int32)
        for _ in range(1 if T * context > 1 << 16 else 4):
            qkv, cache = randn(T, 48 * D), randn(2, T * context // B, B, K, D)
            tables = torch.randperm(T * context // B, device=CUDA).int().view(T, -1)
            args = (cache[0], cache[1], tables)
            runs.append(partial(few_attention_op.few_rows_attention, qkv, *args, lens, D**-0.5, arrived))
            k_codes, v_codes = cache.to(DTYPE)
            run = partial(few_attention_op.few_rows_attention, qkv, k_codes, v_codes, tables, lens, D**-0.5, arrived)
            kept.append(run)
            q = qkv.view(T, 48, D)[:, :32]
            paged = partial(attention_op.paged_attention, q, *args, starts, lens, scale=D**-0.5)
            rivals.append(partial(paged, max_query_len=1, max_context_len=context))
        moved = 4 * T * context * K * D
        yield Case(f"{T} x {context}", runs, bytes=moved, rival="paged_attention", rival_runs=rivals)
        yield Case(f"{T} x {context}, 8 bit", kept, bytes=moved // 2, rival="bf16 cache", rival_runs=runs)
