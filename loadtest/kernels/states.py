"""Cases of layers with a state instead of attention, in the sizes of Qwen 3 Next."""

from collections.abc import Iterator
from functools import partial

import torch

from kernels import causal_conv as conv_op
from kernels import gated_delta as delta_op
from kernels import gated_norm as norm_op
from kernels.fading import Fading
from loadtest.kernels.case import CUDA, Case, randn

_K, _V, _D, _W = 16, 32, 128, 4
_CHANNELS = (2 * _K + _V) * _D
# Sequences, tokens of each: decodes, prompts.
_STEPS = ((1, 1), (16, 1), (64, 1), (1, 512), (4, 512), (1, 2048))


def _sequences(S: int, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    slots = torch.arange(S, dtype=torch.int32, device=CUDA)
    begins = torch.arange(0, S * n + 1, n, dtype=torch.int32, device=CUDA)
    return slots, begins, torch.full((S,), n + 100, dtype=torch.int32, device=CUDA)


def causal_conv() -> Iterator[Case]:
    for S, n in _STEPS:
        sets = [
            (randn(S * n, _CHANNELS), randn(_CHANNELS, _W), torch.zeros(S + 1, _W - 1, _CHANNELS, device=CUDA))
            for _ in range(3)
        ]
        yield Case(
            f"{S} x {n} tokens",
            [partial(conv_op.causal_conv, *each, *_sequences(S, n), max_query_len=n) for each in sets],
            bytes=4 * S * n * _CHANNELS + 8 * S * (_W - 1) * _CHANNELS,
        )


def gated_delta() -> Iterator[Case]:
    for S, n in _STEPS:
        T, runs = S * n, []
        for _ in range(3):
            q, k, v = randn(T, _K, _D), randn(T, _K, _D), randn(T, _V, _D)
            fading = Fading(randn(T, _V), randn(T, _V), torch.rand(_V, device=CUDA), torch.rand(_V, device=CUDA))
            states = torch.zeros(S + 1, _V, _D, _D, device=CUDA)
            runs.append(
                partial(delta_op.gated_delta, q, k, v, fading, states, *_sequences(S, n), max_query_len=n)
            )  # fmt: skip
        yield Case(f"{S} x {n} tokens", runs, bytes=8 * S * _V * _D * _D + 2 * T * (2 * _K + 2 * _V) * _D)


def gated_norm() -> Iterator[Case]:
    for T in (1, 64, 2048):
        sets = [(randn(T, _V, _D), randn(T, _V, _D), randn(_D)) for _ in range(3)]
        yield Case(
            f"{T} x 32 x 128", [partial(norm_op.gated_norm, *each, 1e-6) for each in sets], bytes=6 * T * _V * _D
        )
