"""Cases of kernels that go over rows or blocks once: norms, rotation, gate, embedding, gathered blocks."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels import activation as activation_op
from kernels import embedding as embedding_op
from kernels import kv_copy as kv_copy_op
from kernels import rms_norm as norm_op
from kernels import rope as rope_op
from kernels.float8_kv import DTYPE
from loadtest.kernels.case import CUDA, Case, randn


def rms_norm() -> Iterator[Case]:
    for T, E in ((8192, 4096), (64, 4096), (1, 4096)):
        sets = [(randn(T, E), randn(T, E), randn(E)) for _ in range(3)]
        yield Case(
            f"{T} x {E}",
            [partial(norm_op.rms_norm, x, w, 1e-5) for x, _, w in sets],
            bytes=4 * T * E,
            rival="torch",
            rival_runs=[partial(functional.rms_norm, x, (E,), w, 1e-5) for x, _, w in sets],
        )
        yield Case(
            f"add {T} x {E}", [partial(norm_op.add_rms_norm, x, r, w, 1e-5) for x, r, w in sets], bytes=8 * T * E
        )
    heads = [(randn(8192, 6144)[:, :4096].view(8192, 32, 128), randn(128)) for _ in range(3)]
    yield Case(
        "heads 8192 x 32 x 128", [partial(norm_op.rms_norm, x, w, 1e-6) for x, w in heads], bytes=4 * 8192 * 4096
    )


def rope() -> Iterator[Case]:
    cos = torch.randn(8192, 64, device=CUDA)
    for T in (8192, 64):
        rows = [randn(T, 6144) for _ in range(3)]
        qkv = [
            (r[:, :4096].view(T, 32, 128), r[:, 4096:5120].view(T, 8, 128), r[:, 5120:].view(T, 8, 128)) for r in rows
        ]
        positions, slots = torch.arange(T, device=CUDA), torch.randperm(T, device=CUDA)
        keys, values = randn(T // 16, 16, 8, 128), randn(T // 16, 16, 8, 128)
        yield Case(
            f"{T} x (32 + 8) x 128",
            [partial(rope_op.rope, q, k, cos, cos, positions) for q, k, _ in qkv],
            bytes=4 * T * 40 * 128,
        )
        yield Case(
            f"and store {T}",
            [partial(rope_op.rope_store_kv, q, k, v, cos, cos, positions, keys, values, slots) for q, k, v in qkv],
            bytes=4 * T * 48 * 128,
        )
        codes = keys.to(DTYPE), values.to(DTYPE)
        yield Case(
            f"and store {T}, 8 bit",
            [partial(rope_op.rope_store_kv, q, k, v, cos, cos, positions, *codes, slots) for q, k, v in qkv],
            bytes=4 * T * 40 * 128 + 2 * T * 8 * 128 + 2 * T * 8 * 128,
        )


def activation() -> Iterator[Case]:
    def torch_silu_and_mul(x: Tensor) -> Tensor:
        return functional.silu(x[:, :14336]) * x[:, 14336:]

    for T in (8192, 64):
        sets = [randn(T, 2 * 14336) for _ in range(2)]
        yield Case(
            f"silu {T} x 14336",
            [partial(activation_op.silu_and_mul, x) for x in sets],
            bytes=6 * T * 14336,
            rival="torch",
            rival_runs=[partial(torch_silu_and_mul, x) for x in sets],
        )


def embedding() -> Iterator[Case]:
    weight = randn(128256, 4096)
    ids = [torch.randint(128256, (8192,), device=CUDA) for _ in range(3)]
    yield Case(
        "8192 x 4096",
        [partial(embedding_op.embedding, i, weight) for i in ids],
        bytes=4 * 8192 * 4096,
        rival="torch",
        rival_runs=[partial(functional.embedding, i, weight) for i in ids],
    )


def kv_copy() -> Iterator[Case]:
    cache = randn(16384, 16, 8, 128)
    ids = torch.randperm(16384, device=CUDA)
    out = randn(8192, 16, 8, 128)
    yield Case(
        "gather 8192 blocks",
        [partial(kv_copy_op.gather_blocks, cache, ids[:8192], out)],
        bytes=2 * out.nbytes,
        rival="torch",
        rival_runs=[partial(torch.index_select, cache, 0, ids[:8192], out=out)],
    )
