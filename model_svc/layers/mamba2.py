"""A Mamba 2 layer instead of attention: project, convolve, scan with a state, gate and norm, project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from kernels.causal_conv import causal_conv
from kernels.gated_norm import gated_norm
from kernels.quantize_rows import QuantizedRows
from kernels.selective_scan import Steps, selective_scan
from model_svc.layers.group import Group
from model_svc.layers.loader import Loader, Run
from model_svc.layers.mixer import Mixer
from model_svc.layers.step import LayerKv, StepBatch
from model_svc.weights.source import Shard


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

    def share(self, group: Group) -> Mamba2Config:
        """Return the sizes of a rank's part: heads and groups are dealt out, where groups are fewer ranks share one.

        Raises ValueError where ranks would share unequally.
        """
        if self.num_groups % group.size and group.size % self.num_groups:
            raise ValueError(f"{self.num_groups} groups of heads cannot be dealt out to {group.size} ranks")
        num_groups = max(1, self.num_groups // group.size)
        return replace(self, num_heads=self.num_heads // group.size, num_groups=num_groups)


class Mamba2(Mixer):
    """One layer's state space, `mamba` of the checkpoint."""

    def __init__(self, loader: Loader, config: Mamba2Config) -> None:
        self._config = own = config.share(loader.group)
        self._group = loader.group
        H, E, W, inner, channels = config.num_heads, config.hidden, config.conv_width, config.inner, config.channels
        heads, groups, parts = loader.shard(H), loader.shard(config.num_groups), config.num_groups * config.state_size
        outs, shards = (inner, inner, parts, parts, H), (heads, heads, groups, groups, heads)
        self._inputs = loader.columns(("in_proj",), outs, E, shards, bias=config.bias)
        taken = _runs(outs[1:4], shards[1:4])
        self._filters = loader.dense_runs("conv1d.weight", (channels, 1, W), taken).view(-1, W)
        self._conv_bias = loader.dense_runs("conv1d.bias", (channels,), taken) if config.conv_bias else None
        names = ("A_log", "dt_bias", "D")
        rate, self._bias, self._skip = (loader.exact(name, (H,)).narrow(0, *heads.span(H)) for name in names)
        self._rate = rate.exp()
        self._norm = loader.part("norm.weight", (inner,), heads).view(own.num_groups, -1)
        self._num_groups, self._own_group = config.num_groups, groups.rank
        self._out = loader.rows("out_proj", E, inner, bias=config.bias)

    def _read(self, x: Tensor | QuantizedRows, step: StepBatch, kv: LayerKv) -> Tensor:
        """Return what the heads read, gated and normed, [T, H * P]."""
        assert isinstance(x, Tensor)
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
        if self._num_groups < self._group.size:
            return self._normed_together(read.view(T, -1), gate)
        grouped = read.view(T, G, -1), gate.view(T, G, -1)
        return gated_norm(*grouped, self._norm, config.norm_eps, gate_first=True).view(T, -1)

    def _normed_together(self, read: Tensor, gate: Tensor) -> Tensor:
        """Gate what the heads read, and norm it over all ranks that share a group; all add up at once."""
        wide, G = read.float() * functional.silu(gate.float()), self._num_groups
        means = torch.zeros(read.shape[0], G, device=read.device)
        own = means[:, self._own_group : self._own_group + 1]
        own.copy_(wide.square().mean(-1, keepdim=True) * (G / self._group.size))
        self._group.add_up(means)
        return (wide * (own + self._config.norm_eps).rsqrt() * self._norm.float()).to(read.dtype)


def _runs(outs: Sequence[int], shards: Sequence[Shard]) -> list[Run]:
    """Return where the shards of parts that stand one after another are."""
    runs, at = [], 0
    for out, shard in zip(outs, shards, strict=True):
        begin, width = shard.span(out)
        runs.append(Run(at + begin, width))
        at += out
    return runs
