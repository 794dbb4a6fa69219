"""A layer with a state of fixed size instead of attention: project, convolve, gated delta rule, gated norm, project."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.causal_conv import causal_conv
from kernels.fading import Fading
from kernels.gated_delta import gated_delta
from kernels.gated_norm import gated_norm
from model_svc.layers.linear import Linear
from model_svc.layers.loader import Loader
from model_svc.layers.state_mixer import StateMixer
from model_svc.layers.step import LayerKv, StepBatch


@dataclass(frozen=True)
class DeltaNetConfig:
    """The sizes of a layer: K key heads of Dk and V value heads of Dv, and a convolution over W tokens."""

    hidden: int
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    norm_eps: float

    @property
    def keys(self) -> int:
        """How many numbers the queries, and the keys, of a token have."""
        return self.num_key_heads * self.key_dim

    @property
    def values(self) -> int:
        """How many numbers the values of a token have."""
        return self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """How many numbers of a token go through the convolution."""
        return 2 * self.keys + self.values


class GatedDeltaNet(StateMixer):
    """One layer's gated delta net, `linear_attn` of the checkpoint."""

    def __init__(self, loader: Loader, config: DeltaNetConfig) -> None:
        self._config = config
        V, channels = config.num_value_heads, config.channels
        self._inputs, self._changes = _inputs(loader, config), _changes(loader, config)
        self._filters = loader.dense("conv1d.weight", (channels, 1, config.conv_width)).view(channels, -1)
        self._rate = loader.exact("A_log", (V,)).exp()
        self._bias = loader.exact("dt_bias", (V,))
        self._norm = loader.dense("norm.weight", (config.value_dim,))
        self._out = loader.rows("out_proj", config.hidden, config.values)

    def _read(self, x: Tensor, step: StepBatch, kv: LayerKv) -> Tensor:
        """Return what the heads read, normed and gated, [T, V * Dv]."""
        config, (windows, states), T = self._config, kv, x.shape[0]
        K, V, Dk, Dv = config.num_key_heads, config.num_value_heads, config.key_dim, config.value_dim
        taken, gate = torch.split(self._inputs(x), [config.channels, config.values], dim=-1)
        b, a = torch.split(self._changes(x), [V, V], dim=-1)
        sequences, longest = (step.slots, step.query_start, step.context_lens), step.max_query_len
        mixed = causal_conv(taken, self._filters, windows, *sequences, max_query_len=longest)
        q, k, v = torch.split(mixed, [config.keys, config.keys, config.values], dim=-1)
        read = gated_delta(
            q.view(T, K, Dk), k.view(T, K, Dk), v.view(T, V, Dv), Fading(a, b, self._rate, self._bias), states,
            *sequences, max_query_len=longest,
        )  # fmt: skip
        return gated_norm(read, gate.view(T, V, Dv), self._norm, config.norm_eps).view(T, -1)


def _inputs(loader: Loader, config: DeltaNetConfig) -> Linear:
    """Fetch the product that makes queries, keys, values and gates.

    Checkpoints have them in pieces (Qwen 3.5, GGUF files), or those of one key head beside another's (Qwen 3 Next).
    """
    K, E, group, whole = config.num_key_heads, config.hidden, _group(config), loader.shard(1)
    if loader.has("in_proj_qkv.weight"):
        return loader.columns(("in_proj_qkv", "in_proj_z"), (config.channels, config.values), E, (whole, whole))
    widths = (config.key_dim, config.key_dim, group * config.value_dim, group * config.value_dim)
    return loader.by_head("in_proj_qkvz", E, K, widths)


def _changes(loader: Loader, config: DeltaNetConfig) -> Linear:
    """Fetch the product that makes what a token may change, in pieces or by key head."""
    K, V, E, whole = config.num_key_heads, config.num_value_heads, config.hidden, loader.shard(1)
    if loader.has("in_proj_b.weight"):
        return loader.columns(("in_proj_b", "in_proj_a"), (V, V), E, (whole, whole))
    return loader.by_head("in_proj_ba", E, K, (_group(config),) * 2)


def _group(config: DeltaNetConfig) -> int:
    """Return how many value heads a key head serves."""
    return config.num_value_heads // config.num_key_heads
