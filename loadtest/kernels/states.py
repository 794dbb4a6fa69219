"""Cases of layers with a state instead of attention: sizes of Qwen 3 Next, and of Granite 4 H Tiny for the scan."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels import causal_conv as conv_op
from kernels import dispatch
from kernels import gated_delta as delta_op
from kernels import gated_norm as norm_op
from kernels import selective_scan as scan_op
from kernels.fading import Fading
from kernels.gated_delta_prompts import CHUNK, Tiles, tiles_of, walk
from loadtest.kernels.case import CUDA, Case, randn

_K, _V, _D, _W = 16, 32, 128, 4
_H, _N, _P = 48, 128, 64
_CHANNELS = (2 * _K + _V) * _D
# Sequences, tokens of each, and for how many sequences there is room: decodes; prompts; one beside room for 64 answers.
_STEPS = ((1, 1, 1), (16, 1, 16), (64, 1, 64), (1, 512, 1), (4, 512, 4), (1, 2048, 1), (1, 2048, 64), (1, 8192, 1))
_SHORTEST = 9  # tokens that go through chunks

Sequences = tuple[Tensor, Tensor, Tensor]


def _sequences(S: int, n: int, room: int) -> Sequences:
    slots = torch.arange(room, dtype=torch.int32, device=CUDA)
    begins = (torch.arange(room + 1, dtype=torch.int32, device=CUDA) * n).clamp(max=S * n)
    return slots, begins, torch.full((room,), n + 100, dtype=torch.int32, device=CUDA)


def _name(S: int, n: int, room: int) -> str:
    return f"{S} x {n} tokens" + (f", room for {room}" if room > S else "")


def causal_conv() -> Iterator[Case]:
    for S, n, room in _STEPS:
        sets = [
            (randn(S * n, _CHANNELS), randn(_CHANNELS, _W), torch.zeros(room + 1, _W - 1, _CHANNELS, device=CUDA))
            for _ in range(3)
        ]
        yield Case(
            _name(S, n, room),
            [partial(conv_op.causal_conv, *each, *_sequences(S, n, room), max_query_len=n) for each in sets],
            bytes=4 * S * n * _CHANNELS + 8 * S * (_W - 1) * _CHANNELS,
        )


@dataclass(frozen=True)
class _Delta:
    """The inputs of a layer's step."""

    q: Tensor
    k: Tensor
    v: Tensor
    fading: Fading
    states: Tensor
    sequences: Sequences
    longest: int

    def run(self) -> Tensor:
        return delta_op.gated_delta(
            self.q, self.k, self.v, self.fading, self.states, *self.sequences, max_query_len=self.longest
        )

    def run_token_by_token(self) -> Tensor:
        with dispatch.fixed_order():
            return self.run()

    def make_tiles(self) -> Tiles:
        begins = self.sequences[1]
        return tiles_of(
            self.q, self.k, self.fading, begins, num_value_heads=_V, shortest=_SHORTEST, eps=delta_op.EPS
        )  # fmt: skip

    def walk(self, tiles: Tiles, columns: int) -> None:
        out = torch.empty_like(self.v)
        walk(self.q, self.k, self.v, tiles, self.states, *self.sequences, out, columns=columns)


def _deltas(S: int, n: int, room: int) -> list[_Delta]:
    T, made = S * n, []
    for _ in range(3):
        mixed = randn(T, _CHANNELS)
        q, k, v = torch.split(mixed, [_K * _D, _K * _D, _V * _D], dim=1)
        rate, bias = torch.rand(_V, device=CUDA), torch.rand(_V, device=CUDA)
        fading = Fading(randn(T, _V), randn(T, _V), rate, bias)
        states = torch.zeros(room + 1, _V, _D, _D, device=CUDA)
        heads = (q.view(T, _K, _D), k.view(T, _K, _D), v.view(T, _V, _D))
        made.append(_Delta(*heads, fading, states, _sequences(S, n, room), n))
    return made


def gated_delta() -> Iterator[Case]:
    for S, n, room in _STEPS:
        deltas = _deltas(S, n, room)
        yield Case(
            _name(S, n, room),
            [delta.run for delta in deltas],
            bytes=8 * S * _V * _D * _D + 2 * S * n * (2 * _K + 2 * _V) * _D,
            rival="token by token" if n > 1 else "",
            rival_runs=[delta.run_token_by_token for delta in deltas] if n > 1 else (),
        )


def gated_delta_tiles() -> Iterator[Case]:
    for S, n, room in _STEPS:
        if n > 1:
            runs = [delta.make_tiles for delta in _deltas(S, n, room)]
            yield Case(_name(S, n, room), runs, bytes=2 * S * n * (2 * _K * _D + 2 * _V * CHUNK) + 16 * S * n * _V)


def gated_delta_walk() -> Iterator[Case]:
    for S, n, room in _STEPS:
        if n > 1:
            made = [(delta, delta.make_tiles()) for delta in _deltas(S, n, room)]
            inputs = S * n * (2 * _K * _D + 2 * _V * _D + 2 * _V * CHUNK)
            yield Case(
                f"{_name(S, n, room)}, 32 columns",
                [partial(delta.walk, tiles, 32) for delta, tiles in made],
                bytes=2 * inputs + 8 * S * _V * _D * _D + 16 * S * n * _V,
                rival="64 columns",
                rival_runs=[partial(delta.walk, tiles, 64) for delta, tiles in made],
            )


def gated_norm() -> Iterator[Case]:
    for T in (1, 64, 2048):
        sets = [(randn(T, _V, _D), randn(T, _V, _D), randn(_D)) for _ in range(3)]
        yield Case(
            f"{T} x 32 x 128", [partial(norm_op.gated_norm, *each, 1e-6) for each in sets], bytes=6 * T * _V * _D
        )


def selective_scan() -> Iterator[Case]:
    for S, n, room in _STEPS:
        T, runs = S * n, []
        for _ in range(3):
            steps = scan_op.Steps(randn(T, _H), *torch.rand(3, _H, device=CUDA))
            states = torch.zeros(room + 1, _H, _N, _P, device=CUDA)
            inputs = randn(T, _H, _P), randn(T, 1, _N), randn(T, 1, _N)
            runs.append(
                partial(scan_op.selective_scan, *inputs, steps, states, *_sequences(S, n, room), max_query_len=n)
            )
        yield Case(_name(S, n, room), runs, bytes=8 * S * _H * _N * _P + 4 * T * (_H * _P + _N))
