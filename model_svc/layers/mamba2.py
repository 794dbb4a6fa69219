"""A Mamba 2 layer instead of attention: project, convolve, scan with a state, gate and norm, project."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.causal_conv import causal_conv
from kernels.gated_norm import gated_norm
from kernels.selective_scan import Steps, selective_scan
from model_svc.layers.loader import Loader
from model_svc.layers.state_mixer import StateMixer
from model_svc.layers.step import LayerKv, StepBatch


@dataclass(frozen=True)
class Mamba2Config:
    """The sizes of a layer: H heads of P with states [N, P], in G groups, and a convolution over W tokens.

    `bias`: both products have one; `conv_bias`: the convolution has.
    """

    hidden: int
    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_width: int
    norm_eps: float
    bias: bool = False
    conv_bias: bool = True

    @property
    def inner(self) -> int:
        """How many numbers of a token its heads take in."""
        return self.num_heads * self.head_dim

    @property
    def channels(self) -> int:
        """How many numbers of a token go through the convolution."""
        return self.inner + 2 * self.num_groups * self.state_size


class Mamba2(StateMixer):
    """One layer's state space, `mamba` of the checkpoint."""

    def __init__(self, loader: Loader, config: Mamba2Config) -> None:
        self._config = config
        H, E, inner, channels = config.num_heads, config.hidden, config.inner, config.channels
        outs, whole = (inner, channels, H), loader.shard(1)
        self._inputs = loader.columns(("in_proj",), outs, E, (whole,) * 3, bias=config.bias)
        self._filters = loader.dense("conv1d.weight", (channels, 1, config.conv_width)).view(channels, -1)
        self._conv_bias = loader.dense("conv1d.bias", (channels,)) if config.conv_bias else None
        self._rate = loader.exact("A_log", (H,)).exp()
        self._bias, self._skip = loader.exact("dt_bias", (H,)), loader.exact("D", (H,))
        self._norm = loader.dense("norm.weight", (inner,)).view(config.num_groups, -1)
        self._out = loader.rows("out_proj", E, inner, bias=config.bias)

    def _read(self, x: Tensor, step: StepBatch, kv: LayerKv) -> Tensor:
        """Return what the heads read, gated and normed, [T, H * P]."""
        config, (windows, states), T = self._config, kv, x.shape[0]
        H, G, N = config.num_heads, config.num_groups, config.state_size
        gate, taken, dt = torch.split(self._inputs(x), [config.inner, config.channels, H], dim=-1)
        sequences, longest = (step.slots, step.query_start, step.context_lens), step.max_query_len
        mixed = causal_conv(taken, self._filters, windows, *sequences, max_query_len=longest, bias=self._conv_bias)
        inputs, b, c = torch.split(mixed, [config.inner, G * N, G * N], dim=-1)
        read = selective_scan(
            inputs.view(T, H, -1), b.view(T, G, N), c.view(T, G, N), Steps(dt, self._rate, self._bias, self._skip),
            states, *sequences, max_query_len=longest,
        )  # fmt: skip
        grouped = read.view(T, G, -1), gate.view(T, G, -1)
        return gated_norm(*grouped, self._norm, config.norm_eps, gate_first=True).view(T, -1)
