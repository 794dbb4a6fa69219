"""Cases of products: of one row, and of a few with all that is fused into them."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels import few_rows as few_rows_op
from kernels import gemv as gemv_op
from kernels import grouped_linear as grouped_op
from kernels import norm_heads as norm_heads_op
from kernels.activation import SILU
from kernels.grouped_weight import GroupedWeight
from loadtest.kernels.case import CUDA, Case, randn


def gemv() -> Iterator[Case]:
    for F, E in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)):
        sets = [(randn(1, E), randn(F, E)) for _ in range(max(1, 160_000_000 // (F * E)))]
        yield Case(
            f"{E} -> {F}",
            [partial(gemv_op.linear, x, w) for x, w in sets],
            bytes=2 * F * E,
            rival="cuBLAS",
            rival_runs=[partial(functional.linear, x, w) for x, w in sets],
        )


def grouped_linear() -> Iterator[Case]:
    """The products of an 8B model's decode step on 4 bits in groups of 128, and on float8; cuBLAS has bf16 numbers."""
    for T in (1, 16, 64, 128, 256):
        for F, E in ((6144, 4096), (28672, 4096), (4096, 14336)):
            for bits in (4, 8) if T <= 64 else (4,):
                yield _grouped(T, F, E, bits)


def _grouped(T: int, F: int, E: int, bits: int) -> Case:
    def weight() -> GroupedWeight:
        codes = torch.randint(0, 120, (F, E * bits // 8), dtype=torch.uint8, device=CUDA)
        codes = codes if bits == 4 else codes.view(torch.float8_e4m3fn)
        scales = torch.rand(F, E // 128, dtype=torch.float16, device=CUDA)
        return GroupedWeight.of(codes, scales, None, middle=8 if bits == 4 else 0, each=8 // bits)

    sets = [(randn(T, E), weight()) for _ in range(max(1, 160_000_000 * 16 // (F * E * bits)))]
    dense = [(x, weight.launch(x.dtype)) for x, weight in sets]
    return Case(
        f"{T} rows, {E} -> {F}, {bits} bit",
        [partial(grouped_op.grouped_linear, x, w) for x, w in sets],
        bytes=sets[0][1].nbytes if T <= 64 else 0,
        flops=2 * T * F * E,
        rival="cuBLAS, bf16",
        rival_runs=[partial(functional.linear, x, w) for x, w in dense],
    )


def few_rows() -> Iterator[Case]:
    """The products of a decode step of the 8B shape, each with what is fused into it; cuBLAS has the product alone."""
    for T in (8, 32, 64):
        yield from _few_rows(T)


def norm_heads() -> Iterator[Case]:
    """Norms of heads, rotation and store behind a plain projection of few rows."""
    H, K, D = 32, 8, 128
    for T in (1, 8, 64):
        qkv, cache, rows = randn(T, (H + 2 * K) * D), randn(2, 4 * T, 16, K, D), torch.arange(T, device=CUDA)
        angles = torch.rand(4096, D // 2, device=CUDA)
        turn = few_rows_op.Rotation(angles, angles, rows, cache[0], cache[1], rows * 16)
        run = partial(norm_heads_op.norm_heads, qkv, D, turn, norm_heads_op.HeadNorms(randn(D), randn(D), 1e-6))
        yield Case(f"{T} x ({H} + 2 x {K}) x {D}", [run], bytes=4 * qkv.numel())


def _few_rows(T: int) -> Iterator[Case]:
    E, inner, heads, D = 4096, 14336, 32 + 2 * 8, 128
    x, wide, residual, norm = randn(T, E), randn(T, inner), randn(T, E), few_rows_op.RmsNormWeights(randn(E), 1e-5)
    cache, rows, angles = randn(2, T, 16, 8, D), torch.arange(T, device=CUDA), torch.randn(4096, D // 2, device=CUDA)
    turn = few_rows_op.Rotation(angles, angles, rows, cache[0], cache[1], rows * 16)
    arrived = torch.zeros(heads * D, dtype=torch.int32, device=CUDA)
    begun = few_rows_op.linear_add(x, randn(E, E), residual, arrived, norm)
    products: tuple[tuple[str, int, Tensor, Callable[[Tensor], object]], ...] = (
        ("qkv", heads * D, x, lambda w: few_rows_op.norm_qkv(x, norm, w, D, turn, arrived)),
        ("o", E, x, lambda w: few_rows_op.linear_add(x, w, residual, arrived, norm)),
        ("gate and up", 2 * inner, x, lambda w: few_rows_op.norm_gate(x, norm, w, SILU, begun)),
        ("down", E, wide, lambda w: few_rows_op.linear_add(wide, w, residual, arrived)),
    )
    for name, F, given, run in products:
        weights = [randn(F, given.shape[1]) for _ in range(max(2, 160_000_000 // (F * given.shape[1])))]
        yield Case(
            f"{T} x {given.shape[1]} -> {F}, {name}",
            [partial(run, w) for w in weights],
            bytes=weights[0].nbytes,
            rival="cuBLAS",
            rival_runs=[partial(functional.linear, given, w) for w in weights],
        )
