"""Cases of attention over latents: decodes, drafts and prompts with as many heads as DeepSeek V2 Lite and V3 have."""

from collections.abc import Iterator
from functools import partial

import torch

from kernels import head_linear as head_linear_op
from kernels import latent_attention as latent_attention_op
from kernels import store_latent as store_latent_op
from loadtest.device_time import Run
from loadtest.kernels.case import CUDA, Case, randn

R, P, B = 512, 64, 16  # of both models


def latent_attention() -> Iterator[Case]:
    for H in (16, 128):
        for S, context in ((64, 4096), (1, 8192), (8, 4096), (256, 512)):
            yield _attention_case(H, S, 1, context)
        yield _attention_case(H, 64, 4, 2048)
        for n, context in ((2048, 2048), (512, 8192)):
            yield _attention_case(H, 1, n, context)


def _attention_case(H: int, S: int, n: int, context: int) -> Case:
    """A decode's ceiling is to read each line once, a prompt's the multiplications of the absorbed form."""
    sets = 1 if S * context > 1 << 17 else 4
    pairs = S * (n * (context - n) + n * (n + 1) // 2)
    what = f"decode {S} x {context}" if n == 1 else f"{S} x {n} of {context}"
    few = n <= 4
    return Case(
        f"{H} heads, {what}",
        [_attention_run(H, S, n, context) for _ in range(sets)],
        bytes=2 * S * context * (R + P) if few else 0,
        flops=0 if few else 2 * pairs * H * (2 * R + P),
    )


def _attention_run(H: int, S: int, n: int, context: int) -> Run:
    width = context // B
    tables = torch.randperm(S * width, device=CUDA).int().view(S, width)
    starts = torch.arange(0, S * n + 1, n, device=CUDA, dtype=torch.int32)
    lens = torch.full((S,), context, device=CUDA, dtype=torch.int32)
    q, q_rope, cache = randn(S * n, H, R), randn(S * n, H, P), randn(S * width, B, 1, R + P)
    return partial(
        latent_attention_op.latent_attention, q, q_rope, cache, tables, starts, lens,
        scale=0.1, max_query_len=n, max_context_len=context,
    )  # fmt: skip


def head_linear() -> Iterator[Case]:
    """Queries into the space of latents, and latents into values."""
    for H in (16, 128):
        for T in (1, 64, 2048):
            for into, size in ((R, 128), (128, R)):
                x, weight = randn(T, H, size), randn(H, into, size)
                moved = 2 * (weight.numel() + x.numel() + T * H * into)
                yield Case(
                    f"{H} heads, {T} x {size} -> {into}", [partial(head_linear_op.head_linear, x, weight)], bytes=moved
                )


def store_latent() -> Iterator[Case]:
    for T in (1, 256, 8192):
        latent, rope, cache = randn(T, R), randn(T, P), randn(T // B + 1, B, 1, R + P)
        slots = torch.randperm(T, device=CUDA)
        run = partial(store_latent_op.store_latent, latent, rope, cache, slots)
        yield Case(f"{T} tokens", [run], bytes=4 * T * (R + P))
