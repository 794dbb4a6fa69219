"""Cases of float8 weights: few rows with all that is fused, many rows as float8, and how rows become that."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels import activation as activation_op
from kernels import few_rows as few_rows_op
from kernels import quantize_rows as rows_op
from kernels import rms_norm as norm_op
from kernels import scaled_linear as scaled_op
from kernels.float8_weight import Float8Weight
from loadtest.kernels.case import CUDA, Case, randn

E, INNER, D = 4096, 14336, 128
SHAPES = {"qkv": (6144, E), "o": (E, E), "gate and up": (2 * INNER, E), "down": (E, INNER)}


def weight(F: int, size: int, *, by_blocks: bool = False) -> Float8Weight:
    """Return random codes with random scales."""
    codes = torch.randint(0, 120, (F, size), dtype=torch.uint8, device=CUDA).view(torch.float8_e4m3fn)
    shape = (F // 128, size // 128) if by_blocks else (F,)
    return Float8Weight(codes, torch.rand(shape, device=CUDA) * 0.01)


def few_rows_float8() -> Iterator[Case]:
    """The products of a decode step of the 8B shape, each with what is fused into it, beside the same on bf16."""
    for T in (1, 8, 32, 64):
        for by_blocks in (False, True) if T in (1, 32) else (False,):
            yield from _few_rows(T, by_blocks=by_blocks)


def _few_rows(T: int, *, by_blocks: bool) -> Iterator[Case]:
    norm, residual = few_rows_op.RmsNormWeights(randn(E), 1e-5), randn(T, E)
    cache, rows, angles = randn(2, T, 16, 8, D), torch.arange(T, device=CUDA), torch.randn(4096, D // 2, device=CUDA)
    turn = few_rows_op.Rotation(angles, angles, rows, cache[0], cache[1], rows * 16)
    arrived = torch.zeros(6144, dtype=torch.int32, device=CUDA)
    x, wide = randn(T, E), randn(T, INNER)
    begun = few_rows_op.linear_add(x, randn(E, E), residual, arrived, norm)
    ways: dict[str, Callable[[few_rows_op.Weight], object]] = {
        "qkv": lambda w: few_rows_op.norm_qkv(x, norm, w, D, turn, arrived, begun),
        "o": lambda w: few_rows_op.linear_add(x, w, residual, arrived, norm),
        "gate and up": lambda w: few_rows_op.norm_gate(x, norm, w, activation_op.SILU, begun),
        "down": lambda w: few_rows_op.linear_add(wide, w, residual, arrived, norm),
    }
    for name, (F, size) in SHAPES.items():
        weights = [weight(F, size, by_blocks=by_blocks) for _ in range(max(2, 200_000_000 // (F * size)))]
        dense = [randn(F, size) for _ in range(max(2, 100_000_000 // (F * size)))]
        yield Case(
            f"{T} x {size} -> {F}, {name}{', blocks' if by_blocks else ''}",
            [partial(ways[name], w) for w in weights],
            bytes=weights[0].nbytes,
            rival="bf16",
            rival_runs=[partial(ways[name], w) for w in dense],
        )


def scaled_linear() -> Iterator[Case]:
    """Products of many rows that are float8 already; the ceiling of the table is that of bf16, half of float8's."""
    for T in (72, 128, 256, 2048, 8192):
        for name, (F, size) in SHAPES.items():
            for by_blocks in (False, True):
                yield _scaled(T, F, size, name, by_blocks=by_blocks)


def _scaled(T: int, F: int, size: int, name: str, *, by_blocks: bool) -> Case:
    x = randn(T, size)
    rows = rows_op.quantize_rows(x, by_blocks=by_blocks)
    weights, dense = [weight(F, size, by_blocks=by_blocks) for _ in range(3)], [randn(F, size) for _ in range(2)]
    return Case(
        f"{T} x {size} -> {F}, {name}{', blocks' if by_blocks else ''}",
        [partial(scaled_op.scaled_linear, rows, w) for w in weights],
        flops=2 * T * F * size,
        rival="cuBLAS, bf16",
        rival_runs=[partial(functional.linear, x, w) for w in dense],
    )


def quantize_rows() -> Iterator[Case]:
    """Rows behind a norm and behind a gate, beside the same that stay bf16."""
    for T in (128, 8192):
        x, residual, norm = randn(T, E), randn(T, E), few_rows_op.RmsNormWeights(randn(E), 1e-5)
        yield Case(
            f"add and norm {T} x {E}",
            [partial(rows_op.normed_rows, x, norm, residual)],
            bytes=7 * T * E,
            rival="bf16",
            rival_runs=[partial(norm_op.add_rms_norm, x, residual, norm.weight, norm.eps)],
        )
        wide: Tensor = randn(T, 2 * INNER)
        yield Case(
            f"gate {T} x {INNER}",
            [partial(rows_op.gated_rows, wide, activation_op.SILU)],
            bytes=5 * T * INNER,
            rival="bf16",
            rival_runs=[partial(activation_op.silu_and_mul, wide)],
        )
        yield Case(f"plain {T} x {E}", [partial(rows_op.quantize_rows, x)], bytes=3 * T * E)
